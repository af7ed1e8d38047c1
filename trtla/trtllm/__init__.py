"""Everything that knows TensorRT-LLM: its library, rules, builds and C++ executor."""
