"""The compiled forward's calls and structures, by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Array,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_void_p,
)
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from trtla.formats.config import CLAMPED
from trtla.runtime.arrays import address
from trtla.runtime.models.cpu.native_code import FORWARD, Calls, declare
from trtla.runtime.sampling.draw import draw_at
from trtla.runtime.threads import num_threads
from trtla.settings.sampling import DRAWN, DrawSettings, SamplingParams, draws_by

ROTARIES = 2
"""The most rotary tables of a model: layers may rotate queries and keys in different ways."""
ACTIVATIONS = ("silu", "gelu_pytorch_tanh", CLAMPED)
"""The C++'s `Activation`, in its order."""
CACHE_TYPES = ("float32", "bfloat16", "int8")
"""The C++'s `CacheType`, in its order."""


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
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("rotary", c_int64),
        ("window", c_int64),
        ("router", Matrix),
        ("experts_gate_up", c_void_p),
        ("experts_down", c_void_p),
        ("correction", c_void_p),
        ("sinks", c_void_p),
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
        ("attention_scale", c_float),
        ("embedding_multiplier", c_float),
        ("residual_multiplier", c_float),
        ("logits_scaling", c_float),
        ("activation", c_int64),
        ("embedding_norm", c_void_p),
        ("residual_norm", c_void_p),
        ("experts_per_token", c_int64),
        ("expert_intermediate", c_int64),
        ("shares_of_chosen", c_int64),
        ("qk_norm_all_heads", c_int64),
        ("swiglu_alpha", c_float),
        ("swiglu_limit", c_float),
        ("scores_are_sigmoids", c_int64),
        ("share_scale", c_float),
        ("gates_shared", c_int64),
    ]


class Exchange(Structure):
    """The memory that a rank of tensor parallelism shares with the others; see `exchange.h`."""

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
        ("cosine", c_void_p * ROTARIES),
        ("sine", c_void_p * ROTARIES),
        ("cache", c_void_p),
        ("logits", c_void_p),
        ("taps", c_void_p),
        ("num_taps", c_int64),
        ("hidden", c_void_p),
        ("threads", c_int64),
        ("vocabulary", c_int64),
        ("states_in", c_void_p),
    ]


_CALLS: Calls = {
    "trtla_lanes": (c_int64, ()),
    "trtla_has_bfloat16_products": (c_int64, ()),
    "trtla_forward": (None, (POINTER(NativeModel), POINTER(NativeStep))),
    "trtla_multiply": (None, (POINTER(Matrix), c_void_p, c_int64, c_void_p, c_int64)),
    "trtla_numbers": (None, (POINTER(Matrix), c_int64, c_void_p)),
    "trtla_most_probable": (c_int64, (c_void_p, c_int64)),
    "trtla_draw": (c_int64, (c_void_p, c_int64, POINTER(c_double), c_double, c_int64)),
    "trtla_filters": (c_char_p, ()),
    "trtla_masked": (None, (c_void_p, c_int64, c_void_p, c_void_p)),
    "trtla_top_rows": (None, (*(c_void_p, c_int64) * 2, c_int64, c_void_p, c_void_p, c_int64)),
    "trtla_types": (c_char_p, ()),
    "trtla_panel_bytes": (c_int64, (c_int64, c_int64)),
    "trtla_pack": (None, (*(c_int64,) * 3, c_void_p, c_int64, c_void_p)),
}


class NativeLibrary:
    """The calls of the compiled library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        short = "trtla_most_probable", "trtla_draw", "trtla_masked", "trtla_top_rows"
        declare(library, _CALLS, short)
        self.forward, self.draw = library.trtla_forward, library.trtla_draw
        self.most_probable, self.top_rows = library.trtla_most_probable, library.trtla_top_rows
        self.masked = library.trtla_masked
        self._multiply, self._numbers = library.trtla_multiply, library.trtla_numbers
        self._pack, self._panel_bytes = library.trtla_pack, library.trtla_panel_bytes
        self.filters = tuple(library.trtla_filters().decode().split())
        """The filters of `draw`, in its order, by the names of `SamplingParams`."""
        self.types = {name: i for i, name in enumerate(library.trtla_types().decode().split())}
        """The numbers of types of weights, by name; see `operands.h`."""
        self.lanes = int(library.trtla_lanes())
        """Numbers of 32 bits in a vector register."""
        self.has_bfloat16_products = bool(library.trtla_has_bfloat16_products())
        """The processor multiplies bfloat16."""

    def multiply(self, matrix: Matrix, rows: ndarray) -> ndarray:
        """The products of contiguous float32 rows [rows, inputs], [rows, outputs]."""
        out = np.empty((len(rows), matrix.outputs), np.float32)
        if len(rows):
            self._multiply(matrix, address(rows), len(rows), address(out), num_threads())
        return out

    def numbers(self, matrix: Matrix) -> ndarray:
        """The numbers of a packed weight, float32 [outputs, inputs]."""
        out = np.empty((matrix.outputs, matrix.inputs), np.float32)
        self._numbers(matrix, matrix.outputs, address(out))
        return out

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


class RowChooser:
    """The `RowSampler` of one model, whose logits are contiguous and float32.

    The result of `top_rows` is valid until its next call.
    """

    def __init__(self) -> None:
        calls = library()
        self._most_probable, self._draw = calls.most_probable, calls.draw
        self._top_rows = calls.top_rows
        self._known: tuple[ndarray, int, int] | None = None
        """The last logits, the address of their rows, and the size of each."""
        self._masked, self._allowed = calls.masked, np.empty((1, 0), np.float32)
        self._room = np.empty((2, 0), np.int32)
        self._tops: dict[tuple[int, int], _Tops] = {}

    def most_probable(self, logits: ndarray, row: int) -> int:
        first, size = self._place(logits)
        token: int = self._most_probable(first + row * size * _FLOAT, size)
        return token

    def draw(self, logits: ndarray, row: int, params: SamplingParams, noise: float) -> int:
        filters = _filters(params.draw_settings)
        if filters is None:
            return draw_at(logits[row : row + 1], params, [noise])[0]
        first, size = self._place(logits)
        start = first + row * size * _FLOAT
        token: int = self._draw(start, size, filters, noise, num_threads())
        return token

    def masked(self, logits: ndarray, row: int, mask: ndarray) -> ndarray:
        first, size = address(logits), logits.shape[1]
        if self._allowed.shape[1] != size:
            self._allowed = np.empty((1, size), np.float32)
        out = self._allowed
        self._masked(first + row * size * _FLOAT, size, address(mask), address(out))
        return out

    def top_rows(self, logits: ndarray, rows: Sequence[int], count: int) -> tuple[ndarray, ndarray]:
        num_rows = len(rows)
        tops = self._tops.get((num_rows, count)) or self._made(num_rows, count)
        indices, out = _indices(tuple(rows)), tops.out
        self._top_rows(*self._place(logits), indices, num_rows, count, *out, num_threads())
        return tops.ids, tops.logs

    def _place(self, logits: ndarray) -> tuple[int, int]:
        """The address of the rows and the size of each, kept since one array is read many times."""
        if self._known is None or self._known[0] is not logits:
            self._known = logits, address(logits), logits.shape[1]
        return self._known[1:]

    def _made(self, num_rows: int, count: int) -> _Tops:
        size = num_rows * count
        if size > self._room.shape[1]:
            self._room, self._tops = np.empty((2, 2 * size), np.int32), {}
        ids, logs = self._room[:, :size].reshape(2, num_rows, count)
        tops = _Tops(ids, logs.view(np.float32), (address(ids), address(logs)))
        self._tops[num_rows, count] = tops
        return tops


class _Tops(NamedTuple):
    """Room for the tokens of some rows and their logarithms, and the addresses of both."""

    ids: ndarray
    logs: ndarray
    out: tuple[int, int]


_FLOAT = 4


@lru_cache(maxsize=64)
def _indices(rows: tuple[int, ...]) -> Array[c_int64]:
    return (c_int64 * len(rows))(*rows)


@lru_cache(maxsize=64)
def _filters(settings: DrawSettings) -> Array[c_double] | None:
    """The settings of the library's filters; None if it lacks one that changes the draw."""
    names, named = library().filters, dict(zip(DRAWN, settings, strict=True))
    if not draws_by(names, settings):
        return None
    return (c_double * len(names))(*(named[name] for name in names))


@lru_cache(maxsize=1)
def library() -> NativeLibrary:
    """The library for this processor; raises `NotCompiled` if there is none."""
    return NativeLibrary(FORWARD.load())
