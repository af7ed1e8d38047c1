"""Conversion of arrays to PyTorch's tensors and back, and FP8 (e4m3): value = number x scale."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from trtla.formats.tensors import E4M3_MAX

E4M3 = torch.float8_e4m3fn

_VIEWS = {
    np.dtype(ml_dtypes.bfloat16): (np.uint16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, E4M3),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
}
"""Types that NumPy has from `ml_dtypes`, and the integers as which their bits pass."""
_BACK = {kind: (np.dtype(bits), dtype) for dtype, (bits, kind) in _VIEWS.items()}


def as_tensor(array: np.ndarray) -> Tensor:
    """The same numbers in the same memory."""
    array = np.require(array, requirements=("C", "W"))
    bits, kind = _VIEWS.get(array.dtype, (None, None))
    if kind is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(bits)).view(kind)


def as_array(tensor: Tensor) -> np.ndarray:
    """The same numbers, in the same memory where that is contiguous and the host's."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype not in _BACK:
        array: np.ndarray = tensor.numpy()
        return array
    bits, dtype = _BACK[tensor.dtype]
    integers = torch.uint16 if bits.itemsize == 2 else torch.uint8
    return tensor.view(integers).numpy().view(dtype)


def quantize(values: Tensor, scale: Tensor) -> Tensor:
    """The nearest FP8 numbers to values / scale; beyond the range they are +-448.

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
