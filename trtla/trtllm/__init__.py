"""TensorRT-LLM: its library, rules, builds and C++ executor."""
