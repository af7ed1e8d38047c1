"""An OpenAI-compatible HTTP server: one thread decodes, one event loop answers the network."""
