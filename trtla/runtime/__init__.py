"""Requests in, tokens out: the executor's contract, and the torch executor with its models.

`trtla.trtllm` has TensorRT-LLM's executor, and `trtla.llm` opens either one.
"""
