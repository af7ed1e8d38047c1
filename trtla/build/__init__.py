"""Making engines: Hugging Face checkpoint -> TensorRT-LLM checkpoint -> engine directory."""
