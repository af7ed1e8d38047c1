"""The measuring engine: arms of our engine and of peers in turns, load on servers, and tables."""
