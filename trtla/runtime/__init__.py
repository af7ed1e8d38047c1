"""Running engines: the executor protocol, the two executors behind it, and `LLM` on top."""
