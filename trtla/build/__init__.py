"""Conversion of models to TensorRT-LLM checkpoints, quantisation, and engine folders."""
