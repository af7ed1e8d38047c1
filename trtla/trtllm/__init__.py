"""TensorRT-LLM: its library, rules, builds, C++ executor, and a drafter for its PyTorch backend."""
