"""Per-tensor FP8 (e4m3): value = number x scale, with one float32 scale a tensor.

The one place that rounds to FP8 and back, for weights, activations, keys and values alike. Scales
are TensorRT-LLM's scaling factors: multipliers that undo the quantisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
"""The largest number of the type."""


def scale_of(largest: float) -> float:
    """The scale, in float32, with which the largest absolute value becomes E4M3_MAX.

    Of zeros it is 1: any scale gives them back.
    """
    return (torch.tensor(largest) / E4M3_MAX).item() or 1.0


def quantize(values: Tensor, scale: Tensor) -> Tensor:
    """The nearest FP8 numbers to values / scale; what lies beyond the range becomes +-448.

    Args:
        scale: float32, one element.
    """
    # Dividing in half precision would round twice.
    wide = torch.promote_types(values.dtype, torch.float32)
    return (values.to(wide) / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(E4M3)


def dequantize(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """FP8 numbers x scale in another type, rounded once."""
    wide = torch.promote_types(dtype, torch.float32)
    return (numbers.to(wide) * scale).to(dtype)
