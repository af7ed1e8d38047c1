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
_HUGE_PAGE = 2 << 20
_CHUNK = 64 << 20  # above what the C library keeps for later when it is freed


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


class HugePages:
    """Memory in huge pages, given out array by array; what is not written takes none.

    Through pages of 4 kB a virtual machine reads memory up to a third more slowly, and arrays of
    less than 4 MB get no others.
    """

    def __init__(self) -> None:
        self._left: np.ndarray | None = None

    def take(self, size: int) -> np.ndarray:
        """Return so many undefined bytes, aligned to a cache line."""
        room = -(-size // LINE) * LINE
        if self._left is None or room > len(self._left):
            self._left = _chunk(max(room, _CHUNK))
        taken, self._left = self._left[:size], self._left[room:]
        return taken


def _chunk(size: int) -> np.ndarray:
    """Return undefined bytes at the beginning of a huge page: NumPy asks for them."""
    import numpy as np

    raw = np.empty(size + _HUGE_PAGE, np.uint8)
    start = -address(raw) % _HUGE_PAGE
    return raw[start : start + size]


def paged(shape: tuple[int, ...]) -> np.ndarray:
    """Return new bytes whose pages take no memory until each is written.

    NumPy asks for huge pages, which would soon back all of a sparsely written array.
    """
    import numpy as np

    return np.frombuffer(mmap.mmap(-1, max(1, prod(shape))), np.uint8)[: prod(shape)].reshape(shape)
