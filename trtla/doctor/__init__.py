"""Describes this machine, a model or a folder, and what can be done with them."""
