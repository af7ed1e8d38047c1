"""What makes a step fast on CUDA: attention over pages, fused operations, CUDA graphs.

Triton is imported by `kernels` and `fused` alone, which are imported where kernels run.
"""
