"""The compiled forward as Python calls it, by ctypes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache

import numpy as np
from numpy import ndarray

from trtla.runtime.arrays import address
from trtla.runtime.models.cpu.native_code import FORWARD, Calls, declare
from trtla.runtime.threads import num_threads
from trtla.settings.sampling import SamplingParams


class Matrix(Structure):
    """A packed weight; see `matmul.h`."""

    _fields_ = [
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("type", c_int64),
    ]


class NativeLayer(Structure):
    """A decoder layer's weights."""

    _fields_ = [
        ("input_norm", c_void_p),
        ("qkv", Matrix * 3),
        ("dense", Matrix),
        ("post_norm", c_void_p),
        ("gate_up", Matrix),
        ("down", Matrix),
    ]


class NativeModel(Structure):
    """All weights and sizes."""

    _fields_ = [
        ("layers", POINTER(NativeLayer)),
        ("num_layers", c_int64),
        ("embedding", Matrix),
        ("norm", c_void_p),
        ("lm_head", Matrix),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_size", c_int64),
        ("epsilon", c_float),
        ("cache_type", c_int32),
        ("exchange", c_void_p),
    ]


class Exchange(Structure):
    """What a rank of tensor parallelism shares with the others; see `exchange.h`."""

    _fields_ = [
        ("rank", c_int64),
        ("ranks", c_int64),
        ("arrivals", c_void_p),
        ("parts", c_void_p),
        ("room", c_int64),
        ("first_output", c_int64),
        ("file", c_int64),
        ("lost", c_int64),
    ]


class NativeStep(Structure):
    """One forward's input and output."""

    _fields_ = [
        ("tokens", c_int64),
        ("num_rows", c_int64),
        ("num_sequences", c_int64),
        ("integers", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("cache", c_void_p),
        ("logits", c_void_p),
        ("taps", c_void_p),
        ("num_taps", c_int64),
        ("hidden", c_void_p),
        ("threads", c_int64),
        ("vocabulary", c_int64),
    ]


class Filters(Structure):
    """Which tokens of a row may be drawn, and how probable they are."""

    _fields_ = [
        ("temperature", c_double),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("least", c_double),
    ]


_CALLS: Calls = {
    "trtla_lanes": (c_int64, ()),
    "trtla_has_bfloat16_products": (c_int64, ()),
    "trtla_forward": (None, (POINTER(NativeModel), POINTER(NativeStep))),
    "trtla_most_probable": (c_int64, (c_void_p, c_int64)),
    "trtla_draw": (c_int64, (c_void_p, c_int64, POINTER(Filters), c_double)),
    "trtla_top_rows": (None, (*(c_void_p, c_int64) * 2, c_int64, c_void_p, c_void_p, c_int64)),
    "trtla_panel_bytes": (c_int64, (c_int64, c_int64)),
    "trtla_pack": (None, (*(c_int64,) * 3, c_void_p, c_int64, c_void_p)),
}


class NativeLibrary:
    """The calls of the compiled library; a `RowSampler` of contiguous float32 logits."""

    def __init__(self, library: ctypes.CDLL) -> None:
        declare(library, _CALLS)
        self.forward, self._draw = library.trtla_forward, library.trtla_draw
        self._most_probable, self._top_rows = library.trtla_most_probable, library.trtla_top_rows
        self._pack, self._panel_bytes = library.trtla_pack, library.trtla_panel_bytes
        self.lanes = int(library.trtla_lanes())
        """Numbers of 32 bits in a vector register."""
        self.has_bfloat16_products = bool(library.trtla_has_bfloat16_products())
        """Whether the processor multiplies bfloat16."""

    def panel_bytes(self, kind: int, inputs: int) -> int:
        """The bytes of a panel of a type; see `packing.cpp`."""
        size: int = self._panel_bytes(kind, inputs)
        return size

    def pack(
        self, kind: int, inputs: int, group: int, rows: ndarray, panels: int, to: ndarray
    ) -> None:
        """Fill panels of the rows at these addresses, uint64; other threads run meanwhile.

        Args:
            group: inputs of a block, as it is stored.
        """
        self._pack(kind, inputs, group, address(rows), panels, address(to))

    def most_probable(self, logits: ndarray, row: int) -> int:
        token: int = self._most_probable(*_row(logits, row))
        return token

    def top_rows(self, logits: ndarray, rows: Sequence[int], count: int) -> tuple[ndarray, ndarray]:
        shape, places = (len(rows), count), (c_int64 * len(rows))(*rows)
        ids, logs = np.empty(shape, np.int32), np.empty(shape, np.float32)
        out = (address(ids), address(logs))
        self._top_rows(*_row(logits, 0), places, *shape, *out, num_threads())
        return ids, logs

    def draw(self, logits: ndarray, row: int, params: SamplingParams, noise: float) -> int:
        top_k = min(params.top_k, logits.shape[1])
        least = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        filters = Filters(params.temperature, top_k, params.top_p, least)
        token: int = self._draw(*_row(logits, row), filters, noise)
        return token


def _row(logits: ndarray, row: int) -> tuple[int, int]:
    size = logits.shape[1]
    return address(logits) + row * size * logits.itemsize, size


@lru_cache(maxsize=1)
def library() -> NativeLibrary:
    """The library for this processor; raises `NotCompiled` where there is none."""
    return NativeLibrary(FORWARD.load())
