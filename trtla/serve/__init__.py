"""An OpenAI-compatible HTTP server on `LLM`: one thread decodes, one answers the network."""
