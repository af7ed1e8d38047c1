"""Safetensors files, read and written with plain file calls.

The header is parsed and checked here, so that a truncated file is named before any work, and
reading goes through the page cache without mapping it: resident memory is what is asked for and no
more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

from trtla.errors import UsageError
from trtla.json_text import parse_json

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 100 * 2**20  # the format's own limit
_COPY_AGAIN = "copy the file again, or make it again"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: its dtype, its shape, and where its bytes start in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one step along dimension 0."""
        return prod(self.shape[1:]) * self.dtype.itemsize


class SafetensorsFile:
    """An open safetensors file.

    Raises:
        UsageError: the file is missing, truncated or not safetensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = _read_header(path)
        self._file: BinaryIO | None = None

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of a tensor with at least one dimension, in memory of their own."""
        entry = self.entries[name]
        size = (stop - start) * entry.row_bytes
        raw = torch.empty(size, dtype=torch.uint8)
        if self._file is None:
            self._file = self.path.open("rb", buffering=0)
        self._file.seek(entry.offset + start * entry.row_bytes)
        _fill(self._file, tensor_bytes(raw), self.path, name)
        return raw.view(entry.dtype).view(stop - start, *entry.shape[1:])

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def header_bytes(tensors: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> bytes:
    """The header of a file that will hold these tensors, in this order, without gaps."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape, dtype in tensors:
        start, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data 8-byte aligned
    return len(text).to_bytes(8, "little") + text


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _fill(file: BinaryIO, view: memoryview, path: Path, name: str) -> None:
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise UsageError(f"{path} ends inside tensor {name}", _COPY_AGAIN)
        view = view[count:]


def _read_header(path: Path) -> dict[str, Entry]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > _MAX_HEADER or 8 + length > size:
                raise UsageError(f"{path} is truncated or not safetensors", _COPY_AGAIN)
            header = parse_json(file.read(length))
        entries = dict(_entries(header, 8 + length))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "copy the missing file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check its mode") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} has a broken safetensors header", _COPY_AGAIN) from None
    _check_layout(path, entries, 8 + length, size)
    return entries


def _entries(header: dict[str, Any], base: int) -> Iterator[tuple[str, Entry]]:
    for name, item in header.items():
        if name == "__metadata__":
            continue
        start, end = map(_count, item["data_offsets"])
        entry = Entry(_DTYPES[item["dtype"]], tuple(map(_count, item["shape"])), base + start)
        if end + base != _end(entry):
            raise ValueError(name)
        yield name, entry


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
            raise UsageError(f"{path} has a gap before tensor {name}", _COPY_AGAIN)
        end = _end(entry)
        if end > size:
            raise UsageError(
                f"{path} is truncated: tensor {name} ends at byte {end}, the file at {size}",
                _COPY_AGAIN,
            )
    if end != size:
        raise UsageError(f"{path} holds {size - end} bytes after its last tensor", _COPY_AGAIN)
