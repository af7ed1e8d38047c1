"""The order in which kernels read integer weights; TensorRT-LLM quantization/functional.py.

Releases differ in which orders they know for compute capability 12.x. The order itself is simpler
here: what is modelled is for which GPUs it is the same.
"""

from __future__ import annotations

import os

import torch

from .._utils import get_sm_version


def preprocess_weights_for_mixed_gemm(
    tensor: torch.Tensor,
    quant_mode: torch.dtype,
    act_dtype: torch.dtype,
    sm_: int = -1,
    do_weight_interleave: bool = True,
) -> torch.Tensor:
    """Weights [inputs, bytes of outputs] in the order of a GPU's kernels."""
    sm = sm_ if sm_ > 0 else get_sm_version()
    by_itself = os.environ.get("TENSORRT_LLM_STANDIN_INT4_ORDER") == "by capability"
    if sm > 90 and not (by_itself and tensor.dim() == 2):
        sm = 80
    if sm > 90:
        return tensor
    rows = torch.arange(len(tensor)).view(-1, 2, 4, 2).transpose(1, 2).reshape(-1)
    return tensor[rows] if do_weight_interleave else tensor
