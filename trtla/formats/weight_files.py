"""Weight files: their bytes, safetensors' headers, and comparison of tensors with a config.

The header of a safetensors file is parsed and checked here, so that a truncated file is named
before any work, and reading goes through the page cache without mapping it: only the rows read take
resident memory, and another process that cuts or replaces the file ends no process here.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy import ndarray

from trtla.errors import TrtlaError, UsageError
from trtla.files import parse_json, refuse_stand_in
from trtla.formats.config import DTYPES, FP8, INT4

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 100 * 2**20  # the format's own limit
COPY_AGAIN = "copy the file again, or make it again"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: its dtype, its shape, and where its bytes start in the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    stacked: int | None = None
    """The tensors that a stack has, whose rows follow each other here."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one step along dimension 0."""
        return prod(self.shape[1:]) * self.dtype.itemsize


class FileBytes:
    """The bytes of a file while it stays as it was when its header was read."""

    def __init__(self, path: Path, stamp: tuple[int, int]) -> None:
        self.path, self._stamp = path, stamp
        self._file: BinaryIO | None = None
        self._lock = Lock()

    def fill(self, view: memoryview, offset: int, name: str) -> None:
        """Read from an offset on until the memory is full; several threads may do so at a time.

        Raises `UsageError` where the file ends before, or has been changed; `TrtlaError`
        where the disk fails.
        """
        try:
            file = self._opened()
            while view and (count := os.preadv(file, [view], offset)):
                view, offset = view[count:], offset + count
            now = stamp(os.fstat(file))
        except OSError as error:
            raise _unread(self.path, error) from None
        if now != self._stamp:
            raise changed(self.path)
        if view:
            raise UsageError(f"{self.path} ends inside tensor {name}", COPY_AGAIN)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> int:
        with self._lock:
            self._file = self._file or self.path.open("rb", buffering=0)
            return self._file.fileno()


def stamp(stat: os.stat_result) -> tuple[int, int]:
    """Size and time of a file: they differ when another process has written to it."""
    return stat.st_size, stat.st_mtime_ns


def changed(path: Path) -> UsageError:
    """A file that another process writes to."""
    return UsageError(
        f"{path} has changed while it was read", "run the command again when the file is complete"
    )


def _unread(path: Path, error: OSError) -> TrtlaError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{path} does not exist", "copy the missing file")
    reason = error.strerror or error
    if error.errno == errno.EIO:
        return TrtlaError(f"{path} cannot be read: {reason}", "copy the file to another disk")
    return UsageError(f"{path} cannot be read: {reason}", "check its mode")


class SafetensorsFile:
    """An open safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries, self._bytes = _read_header(path)

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop) of a tensor with at least one dimension, in memory of their own."""
        entry = self.entries[name]
        raw = np.empty((stop - start) * entry.row_bytes, np.uint8)
        self._bytes.fill(raw.data, entry.offset + start * entry.row_bytes, name)
        return raw.view(entry.dtype).reshape(stop - start, *entry.shape[1:])

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        self._bytes.close()


def header_bytes(tensors: Iterable[tuple[str, tuple[int, ...], np.dtype[Any]]]) -> bytes:
    """The header of a file that will hold these tensors, in this order, without gaps."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape, dtype in tensors:
        start, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text


def array_bytes(array: ndarray) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data


def _read_header(path: Path) -> tuple[dict[str, Entry], FileBytes]:
    with refusing(path, "has a broken safetensors header"), path.open("rb") as file:
        file_stamp = stamp(os.fstat(file.fileno()))
        size, length = file_stamp[0], int.from_bytes(file.read(8), "little")
        if size < 8 or length > _MAX_HEADER or 8 + length > size:
            refuse_stand_in(path)
            raise UsageError(f"{path} is truncated or not safetensors", COPY_AGAIN)
        entries = dict(_entries(parse_json(file.read(length)), 8 + length))
    _check_layout(path, entries, 8 + length, size)
    return entries, FileBytes(path, file_stamp)


def _entries(header: dict[str, Any], base: int) -> Iterator[tuple[str, Entry]]:
    for name, item in header.items():
        if name == "__metadata__":
            continue
        start, end = map(_count, item["data_offsets"])
        stored = tuple(map(_count, item["shape"]))
        is_stack = len(stored) > 2 or name.endswith("_proj_bias")
        number, shape = stored[0] if is_stack else None, flat_shape(name, stored)
        entry = Entry(_DTYPES[item["dtype"]], shape, base + start, number)
        if end + base != _end(entry):
            raise ValueError(name)
        yield name, entry


_VECTORS = (*("_proj_bias", "_exps.bias", "shared_expert_gate.weight", "e_score_correction_bias"),)
"""Ends of the names of vectors that are stored as matrices."""


def flat_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which a stack, of experts' matrices or biases, is one of all rows; those of
    blocks are rows of bytes."""
    if len(shape) == 2 and name.endswith(_VECTORS):
        return (shape[0] * shape[1],)
    return (shape[0] * shape[1], prod(shape[2:])) if len(shape) in (3, 4) else shape


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(value)
    return value


def _end(entry: Entry) -> int:
    return entry.offset + prod(entry.shape) * entry.dtype.itemsize


def _check_layout(path: Path, entries: dict[str, Entry], base: int, size: int) -> None:
    """The tensors must tile the file; the first one that does not is named."""
    end = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, _end(item[1]))):
        if entry.offset != end:
            raise UsageError(f"{path} has a gap before tensor {name}", COPY_AGAIN)
        end = _end(entry)
        if end > size:
            raise UsageError(
                f"{path} is truncated: tensor {name} ends at byte {end}, the file at {size}",
                COPY_AGAIN,
            )
    if end != size:
        raise UsageError(f"{path} holds {size - end} bytes after its last tensor", COPY_AGAIN)


@contextmanager
def refusing(path: Path, broken: str) -> Iterator[None]:
    """Turn any failure to read a file into a sentence; `broken` is about its content."""
    try:
        yield
    except TrtlaError:
        raise
    except OSError as error:
        raise _unread(path, error) from None
    except pickle.UnpicklingError:
        raise UsageError(
            f"{path} holds objects other than tensors, which trtla does not load",
            "save the model as safetensors where you trust it",
        ) from None
    except Exception:  # a broken file raises whatever its bytes make it raise
        raise UsageError(f"{path} {broken}", COPY_AGAIN) from None


def tensor_problems(
    where: str,
    entries: Mapping[str, Entry],
    expected: Mapping[str, tuple[int, ...]],
    hint: str,
    quantized: Mapping[str, str] = MappingProxyType({}),
) -> list[UsageError]:
    """One error for every missing, unexpected or misshapen tensor, or one of an unknown dtype.

    Args:
        where: the file or folder, for the messages.
        expected: names and shapes by config.json.
        quantized: types of the tensors that are FP8, int4 or in blocks; all others are float16,
            bfloat16 or float32.
    """
    problems = [f"{where} lacks tensor {name}" for name in expected if name not in entries]
    problems += [
        f"{where} holds tensor {name}, which config.json has no place for"
        for name in entries
        if name not in expected
    ]
    for name, shape in expected.items():
        if (entry := entries.get(name)) is None:
            continue
        if entry.shape != shape:
            problems.append(
                f"{where}: tensor {name} has shape {list(entry.shape)}, "
                f"config.json asks for {list(shape)}"
            )
        types, reads = _stored_as(quantized.get(name))
        if entry.dtype.name not in types:
            problems.append(f"{where}: tensor {name} is {entry.dtype}, trtla reads {reads}")
    return [UsageError(problem, hint) for problem in problems]


def _stored_as(kind: str | None) -> tuple[tuple[str, ...], str]:
    """The types that a tensor may have in a file, and their names."""
    if kind is None:
        return DTYPES, "float16, bfloat16 and float32"
    if kind == FP8:
        return (FP8, "int8"), "FP8"  # TensorRT-LLM re-views int8 as FP8
    if kind == INT4:
        return ("int8",), "int8, two int4 numbers a byte"
    return ("uint8",), f"uint8, the blocks of {kind}"


def raise_first(problems: Sequence[UsageError]) -> None:
    """Raise the first problem, if any, with the count of the others."""
    if problems:
        more = f" (and {len(problems) - 1} more of the kind)" if len(problems) > 1 else ""
        raise problems[0].within("", more)
