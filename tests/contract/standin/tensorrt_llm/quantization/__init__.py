"""Quantisation; TensorRT-LLM quantization. The stand-in has the order of integer weights alone."""
