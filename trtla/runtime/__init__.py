"""Requests to tokens: the executor protocol, the torch executor behind it, and its models.

TensorRT-LLM's executor is in `trtla.trtllm`, and `LLM`, which opens either, in `trtla.llm`.
"""
