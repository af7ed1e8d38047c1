"""The Llama family; TensorRT-LLM models/llama."""
