"""Command-line programs; TensorRT-LLM commands."""
