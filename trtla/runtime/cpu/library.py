"""The compiled forward as Python sees it: the C structures of `native/step.cpp`, and its calls."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache

from trtla.runtime.cpu.compiler import NotCompiled, compiled_library


class Matrix(Structure):
    """A packed weight; see `matmul.h`."""

    _fields_ = [
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("type", c_int64),
    ]


class Layer(Structure):
    """A decoder layer's weights."""

    _fields_ = [
        ("input_norm", c_void_p),
        ("qkv", Matrix),
        ("dense", Matrix),
        ("post_norm", c_void_p),
        ("gate_up", Matrix),
        ("down", Matrix),
    ]


class Model(Structure):
    """All weights and sizes."""

    _fields_ = [
        ("layers", POINTER(Layer)),
        ("num_layers", c_int64),
        ("embedding", c_void_p),
        ("embedding_type", c_int64),
        ("norm", c_void_p),
        ("lm_head", Matrix),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_size", c_int64),
        ("epsilon", c_float),
        ("bfloat16", c_int32),
    ]


class Step(Structure):
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
        ("threads", c_int64),
    ]


class Library:
    """The calls of the compiled library."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name in ("trtla_lanes", "trtla_has_float16", "trtla_has_bfloat16_products"):
            getattr(self._library, name).restype = c_int64
        self.forward = self._library.trtla_forward
        self.forward.argtypes = [POINTER(Model), POINTER(Step)]
        self.forward.restype = None
        self.most_probable = self._library.trtla_most_probable
        self.most_probable.argtypes = [c_void_p, c_int64]
        self.most_probable.restype = c_int64
        self.draw = self._library.trtla_draw
        self.draw.argtypes = [c_void_p, c_int64, c_double, c_int64, c_double, c_double]
        self.draw.restype = c_int64
        self.lanes = int(self._library.trtla_lanes())
        """Numbers of 32 bits in a vector register."""
        self.has_float16 = bool(self._library.trtla_has_float16())
        """Whether weights can stay in float16."""
        self.has_bfloat16_products = bool(self._library.trtla_has_bfloat16_products())
        """Whether the processor multiplies bfloat16."""


@lru_cache(maxsize=1)
def library() -> Library:
    """The library for this processor; raises `NotCompiled` where there is none."""
    try:
        return Library(str(compiled_library()))
    except OSError as error:  # a library that cannot be loaded, such as one for another processor
        raise NotCompiled(str(error)) from None
