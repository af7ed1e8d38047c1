"""The compiled forward as Python calls it, by ctypes."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from ctypes import POINTER, Array, Structure, c_double, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache

import numpy as np
from numpy import ndarray

from trtla.runtime.arrays import address
from trtla.runtime.models.cpu.native_code import FORWARD, Calls, declare
from trtla.runtime.threads import num_threads
from trtla.settings.sampling import DrawSettings, SamplingParams


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
        self._placed: tuple[weakref.ref[ndarray] | None, tuple[int, int]] = None, (0, 0)
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
        first, size = self._place(logits)
        token: int = self._most_probable(first + row * size * _FLOAT, size)
        return token

    def top_rows(self, logits: ndarray, rows: Sequence[int], count: int) -> tuple[ndarray, ndarray]:
        num_rows = len(rows)
        ids, logs = found = np.empty((2, num_rows, count), np.int32)
        out = address(found)
        logs = logs.view(np.float32)
        places, out_logs = _places(tuple(rows)), out + num_rows * count * _FLOAT
        first = self._place(logits)
        self._top_rows(*first, places, num_rows, count, out, out_logs, num_threads())
        return ids, logs

    def draw(self, logits: ndarray, row: int, params: SamplingParams, noise: float) -> int:
        first, size = self._place(logits)
        filters = _filters(params.draw_settings, size)
        token: int = self._draw(first + row * size * _FLOAT, size, filters, noise)
        return token

    def _place(self, logits: ndarray) -> tuple[int, int]:
        """Where rows begin, and the size of each: those of one array are asked for many times."""
        known, place = self._placed
        if known is None or known() is not logits:
            place = address(logits), logits.shape[1]
            self._placed = weakref.ref(logits), place
        return place


_FLOAT = 4


@lru_cache(maxsize=64)
def _places(rows: tuple[int, ...]) -> Array[c_int64]:
    return (c_int64 * len(rows))(*rows)


@lru_cache(maxsize=64)
def _filters(settings: DrawSettings, vocab_size: int) -> Filters:
    temperature, top_k, top_p, min_p = settings
    least = math.log(min_p) if min_p > 0.0 else -math.inf
    return Filters(temperature, min(top_k, vocab_size), top_p, least)


@lru_cache(maxsize=1)
def library() -> NativeLibrary:
    """The library for this processor; raises `NotCompiled` where there is none."""
    return NativeLibrary(FORWARD.load())
