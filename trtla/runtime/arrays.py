"""Arrays for C functions: their addresses, and new ones aligned to cache lines."""

from __future__ import annotations

import mmap
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LINE = 64
"""Bytes of a cache line of the processor, and of its widest registers."""


def address(array: np.ndarray) -> int:
    """Return the address of an array's first number, as a C function takes it."""
    start: int = array.__array_interface__["data"][0]
    return start


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Return a new array with undefined numbers."""
    import numpy as np

    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -address(raw) % LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def paged(shape: tuple[int, ...]) -> np.ndarray:
    """Return new bytes whose pages take no memory until each is written.

    NumPy asks for huge pages, which would soon back all of a sparsely written array.
    """
    import numpy as np

    return np.frombuffer(mmap.mmap(-1, max(1, prod(shape))), np.uint8)[: prod(shape)].reshape(shape)
