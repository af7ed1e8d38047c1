"""Speculative decoding on the PyTorch backend: the base class of drafters."""
