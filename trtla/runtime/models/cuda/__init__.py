"""What makes a step fast on CUDA: attention over pages, inputs in one copy, CUDA graphs.

Triton is imported by `kernels` alone, which is imported when a kernel is first called.
"""
