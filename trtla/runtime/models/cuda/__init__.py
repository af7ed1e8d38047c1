"""The fast path on CUDA: attention over pages, fused operations, CUDA graphs.

Only the files of kernels import Triton; they are imported when kernels run.
"""
