"""Every option of TensorRT-LLM's four programs, releases 0.20 to 1.2, and its treatment here."""
