"""Arrays for C functions: where they lie, and new ones that begin at a line of the cache."""

from __future__ import annotations

import mmap
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LINE = 64
"""Bytes of a line of the processor's cache, and of its widest registers."""


def address(array: np.ndarray) -> int:
    """Where an array's numbers begin, as a C function takes it."""
    found: int = array.__array_interface__["data"][0]
    return found


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """A new array, its numbers undefined."""
    import numpy as np

    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -address(raw) % LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def paged(shape: tuple[int, ...]) -> np.ndarray:
    """New bytes whose pages take no memory until they are written, each on its own.

    NumPy asks for huge pages: of an array that is written here and there all would soon be taken.
    """
    import numpy as np

    return np.frombuffer(mmap.mmap(-1, max(1, prod(shape))), np.uint8)[: prod(shape)].reshape(shape)
