"""The compiled forward as Python calls it: compiled once for this processor, loaded by ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trtla.errors import first_line
from trtla.files import user_cache

if TYPE_CHECKING:
    from torch import Tensor

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


class Layer(Structure):
    """A decoder layer's weights."""

    _fields_ = [
        ("input_norm", c_void_p),
        ("qkv", Matrix * 3),
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
        ("taps", c_void_p),
        ("num_taps", c_int64),
        ("hidden", c_void_p),
        ("threads", c_int64),
    ]


class Filters(Structure):
    """Which tokens of a row may be drawn, and how probable they are."""

    _fields_ = [("temperature", c_double), ("top_k", c_int64), ("top_p", c_double)]


class Library:
    """The calls of the compiled library; a `RowSampler` of contiguous float32 logits."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name in ("trtla_lanes", "trtla_has_bfloat16_products"):
            getattr(self._library, name).restype = c_int64
        self.forward = self._library.trtla_forward
        self.forward.argtypes = [POINTER(Model), POINTER(Step)]
        self.forward.restype = None
        self._most_probable = self._library.trtla_most_probable
        self._most_probable.argtypes = [c_void_p, c_int64]
        self._most_probable.restype = c_int64
        self._draw = self._library.trtla_draw
        self._draw.argtypes = [c_void_p, c_int64, POINTER(Filters), c_double]
        self._draw.restype = c_int64
        self.lanes = int(self._library.trtla_lanes())
        """Numbers of 32 bits in a vector register."""
        self.has_bfloat16_products = bool(self._library.trtla_has_bfloat16_products())
        """Whether the processor multiplies bfloat16."""

    def most_probable(self, logits: Tensor, row: int) -> int:
        """The argmax of a row of [rows, vocab]; NO_TOKEN where its logits are not finite."""
        token: int = self._most_probable(*_row(logits, row))
        return token

    def draw(self, logits: Tensor, row: int, params: SamplingParams, noise: float) -> int:
        """A row's token for its noise in [0, 1): temperature, top-k, top-p, Gumbel noise.

        NO_TOKEN where its logits are not finite.
        """
        top_k = min(params.top_k, logits.shape[1])
        filters = Filters(params.temperature, top_k, params.top_p)
        token: int = self._draw(*_row(logits, row), filters, noise)
        return token


def _row(logits: Tensor, row: int) -> tuple[int, int]:
    """Where a row of contiguous float32 logits begins, and how many there are."""
    size = logits.shape[1]
    return logits.data_ptr() + row * size * logits.itemsize, size


@lru_cache(maxsize=1)
def library() -> Library:
    """The library for this processor; raises `NotCompiled` where there is none."""
    try:
        return Library(str(compiled_library()))
    except OSError as error:  # a library that cannot be loaded, such as one for another processor
        raise NotCompiled(str(error)) from None


SOURCES = Path(__file__).parent / "native"
_FLAGS = (
    *("-O3", "-std=gnu++17", "-ffp-contract=fast"),
    *("-pthread", "-fvisibility=hidden", "-fPIC", "-shared"),
)
_TIMEOUT_S = 300
_log = logging.getLogger(__name__)


class NotCompiled(Exception):
    """Why there is no compiled forward, in one line."""


def compiled_library() -> Path:
    """The shared library for this processor, compiled unless it is in the cache.

    Raises:
        NotCompiled: no compiler, or it failed.
    """
    library = _place()
    if library.is_file():
        return library
    _log.warning("compiling the CPU forward for this processor, once: up to a minute")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        return _compile(_compiler(), library)
    except OSError as error:
        raise NotCompiled(f"{library.parent} cannot be written: {error.strerror}") from None


COMPILED, FALLBACK = "compiled for this processor", "PyTorch's operations: "


def state() -> str:
    """What `compiled_library` would do, without doing it."""
    try:
        if _place().is_file():
            return COMPILED
        return f"{Path(_compiler()).name} compiles it when it is first needed"
    except NotCompiled as error:
        return f"{FALLBACK}{error}"


def _place() -> Path:
    return user_cache() / f"step-{_key(_compiler())}.so"


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NotCompiled(f"no C++ compiler was found ({', '.join(names)})")
    return found


def _march() -> str:
    """This machine's instructions; `TRTLA_MARCH` names fewer, such as x86-64-v3."""
    return f"-march={os.environ.get('TRTLA_MARCH') or 'native'}"


def _key(compiler: str) -> str:
    """What the library depends on: sources, flags, compiler and processor."""
    digest = hashlib.sha256(" ".join((compiler, _march(), *_FLAGS, *_processor())).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _processor() -> tuple[str, ...]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return (platform.machine(), platform.processor())
    names = ("model name", "flags", "Features", "CPU part")
    return tuple(sorted({line for line in lines if line.startswith(names)}))


def _compile(compiler: str, library: Path) -> Path:
    """Compile beside the library's place and move it there, so no one ever finds half of it."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".compile-") as folder:
        made = Path(folder) / library.name
        command = [compiler, _march(), *_FLAGS, "-o", str(made), str(SOURCES / "step.cpp")]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotCompiled(f"{compiler} took more than {_TIMEOUT_S} s") from None
        if done.returncode:
            raise NotCompiled(f"{compiler} failed: {first_line(done.stderr)}")
        made.replace(library)
    return library
