"""What makes a step fast on CUDA: attention over pages, fused operations, CUDA graphs, a self-test.

Triton is imported by `kernels` and `fused_kernels` alone, when a kernel is first called.
"""
