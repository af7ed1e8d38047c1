"""Reads the header of a GGUF file: its metadata, and the location of each tensor.

The layout is that of ggml's docs/gguf.md, versions 2 and 3: keys with typed values, then the
tensors' names, shapes and types, then their bytes. Every length is checked against the file's, so
that a truncated file is named before any work. A model may be split over several files.

The header is kept in the model folder too, so that a second start does not read the files'. That
copy is checked by its digest; if it is absent or damaged, the files are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from trtla.errors import UsageError
from trtla.files import refuse_stand_in, user_cache

HEADER = "header.json"
_FORMAT = 6
"""Counted up when the content of the folders changes."""
_LONGEST = 200
"""Bytes of a file's name in that of its folder."""
MADE_OF = "gguf.json"
"""The file, in a model folder, that names the GGUF files with its weights."""
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_COPY_AGAIN = "copy the file again"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_FORMATS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
"""struct's letter of each type of value; None: strings and arrays."""
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_SIZE = struct.Struct("<Q")
_HEADS = (2**23, 2**25, 2**27)
"""Bytes that are tried for a header: the first has room for a vocabulary of 128,000."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: the file it is in, its ggml type, and its bytes there."""

    path: Path
    type: str
    shape: tuple[int, ...]
    """Outermost dimension first, as in PyTorch; GGUF has them the other way round."""
    offset: int
    """The first byte, from the beginning of the file."""
    row_bytes: int
    """Bytes of one step along dimension 0."""

    @property
    def end(self) -> int:
        return self.offset + self.shape[0] * self.row_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and the tensors of a model, of all its files."""

    paths: tuple[Path, ...]
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def is_gguf(path: Path) -> bool:
    """Return True for a file that is named .gguf or begins as a GGUF file."""
    try:
        if not path.is_file():
            return False
        if path.suffix == ".gguf":
            return True
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def shards(path: Path) -> tuple[Path, ...]:
    """The files of a model, from the name of any of them; raises `UsageError` if one is missing."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return (path,)
    stem, _, count = match.groups()
    names = [f"{stem}-{number:05d}-of-{count}.gguf" for number in range(1, int(count) + 1)]
    missing = next((name for name in names if not (path.parent / name).is_file()), None)
    if missing is not None:
        raise UsageError(
            f"{path} is one of {int(count)} files, and {missing} is missing",
            "put all parts of the model into one folder",
        )
    return tuple(path.parent / name for name in names)


def stamps(paths: Iterable[Path]) -> list[list[str | int]]:
    """Name, size and time of files: they differ when a file has been replaced."""
    file_stamps: list[list[str | int]] = []
    for path in paths:
        with _refusing(path):
            stat = path.stat()
        file_stamps.append([str(path), stat.st_size, stat.st_mtime_ns])
    return file_stamps


def read_header(path: Path) -> Header:
    """Read the headers of a model's files; metadata is the first one's."""
    paths = shards(path)
    headers = [_read(part) for part in paths]
    metadata, tensors = headers[0]
    for _, more in headers[1:]:
        check_names(path, [*tensors, *more])
        tensors |= more
    _check_count(path, metadata, len(paths), len(tensors))
    return Header(paths, metadata, tensors)


def check_names(path: Path, names: Iterable[str]) -> None:
    """Raises `UsageError` where two tensors have the same name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{path} holds tensor {twice} twice", _COPY_AGAIN)


def _check_count(path: Path, metadata: dict[str, Any], files: int, tensors: int) -> None:
    """Compare the numbers of files and tensors with those that a model's first file has."""
    if metadata.get("split.count", files) not in (files, 0):
        raise UsageError(
            f"{path} is one of {metadata['split.count']} files and has not the name of one",
            "give the parts the names that they had, such as model-00001-of-00003.gguf",
        )
    if metadata.get("split.tensors.count", tensors) != tensors:
        raise UsageError(
            f"{path} has {tensors} tensors in all parts, and says "
            f"{metadata['split.tensors.count']}",
            _COPY_AGAIN,
        )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    with _refusing(path), path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            refuse_stand_in(path)
            raise UsageError(f"{path} is not a GGUF file", "give a file that begins with GGUF")
        return _parse(path, file, os.fstat(file.fileno()).st_size)


def _parse(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Read until the header is complete, without mapping the file, which others may truncate."""
    for head in _HEADS:
        file.seek(0)
        try:
            return _Reader(path, file.read(head), size).read()
        except (struct.error, IndexError, UnicodeDecodeError):
            if head >= size:
                raise
    raise ValueError(size)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "check the path") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check its mode") from None
    except (struct.error, IndexError):
        raise UsageError(f"{path} is truncated: it ends inside its header", _COPY_AGAIN) from None
    except (UnicodeDecodeError, ValueError, OverflowError, MemoryError):
        raise UsageError(f"{path} has a broken header", _COPY_AGAIN) from None


class _Reader:
    def __init__(self, path: Path, data: bytes, size: int) -> None:
        self._path, self._data, self._at = path, data, len(_MAGIC)
        self._size = size
        """The file's bytes; `data` holds its beginning."""

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        version = self._number("I")
        if version not in _VERSIONS:
            raise UsageError(
                f"{self._path} is GGUF of version {version}, trtla reads {_VERSIONS[0]} and "
                f"{_VERSIONS[1]}",
                "convert the model again with a current llama.cpp, on a little-endian machine",
            )
        tensors, keys = self._count(16), self._count(12)
        metadata = dict(self._pair() for _ in range(keys))
        described = [self._described() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(alignment)
        check_names(self._path, (name for name, *_ in described))
        start = -(-self._at // alignment) * alignment
        for name, *_, offset in described:
            if offset % alignment:
                raise UsageError(
                    f"{self._path}: tensor {name} begins at byte {offset} of the weights, which is "
                    f"no multiple of {alignment}",
                    _COPY_AGAIN,
                )
        infos = {
            name: self._info(name, shape, kind, start + offset)
            for name, shape, kind, offset in described
        }
        self._check_overlaps(infos)
        return metadata, infos

    def _check_overlaps(self, infos: dict[str, TensorInfo]) -> None:
        end = 0
        for name, info in sorted(infos.items(), key=lambda item: (item[1].offset, item[1].end)):
            if info.offset < end:
                raise UsageError(
                    f"{self._path}: tensor {name} begins inside another one", _COPY_AGAIN
                )
            end = info.end

    def _pair(self) -> tuple[str, Any]:
        return self._text(), self._value(self._number("I"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        letter = _FORMATS[kind]
        return self._number(letter or "")

    def _array(self) -> list[Any]:
        kind = self._number("I")
        if kind == _ARRAY:
            raise ValueError("arrays of arrays are of no key that is known")
        letter = _FORMATS[kind]
        if letter is None:
            return self._texts()
        count = self._count(struct.calcsize(letter))
        values = struct.unpack_from(f"<{count}{letter}", self._data, self._at)
        self._at += struct.calcsize(f"<{count}{letter}")
        return list(values)

    def _texts(self) -> list[str]:
        """An array of strings; a vocabulary has some 100,000, so no call is made for each."""
        data, at, texts = self._data, self._at + 8, []
        for _ in range(self._count(8)):
            start = at + 8
            at = start + _SIZE.unpack_from(data, at)[0]
            texts.append(data[start:at].decode("utf-8"))
        if at > len(data):
            raise IndexError(at)
        self._at = at
        return texts

    def _described(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._text(), self._number("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(dimensions)
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return name, shape[::-1], self._number("I"), self._number("Q")

    def _info(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        type_name, row_bytes = _row_bytes(kind, shape)
        info = TensorInfo(self._path, type_name, shape, offset, row_bytes)
        if row_bytes * prod(shape) and info.end > self._size:
            raise UsageError(
                f"{self._path} is truncated: tensor {name} ends at byte {info.end}, the file at "
                f"{self._size}",
                _COPY_AGAIN,
            )
        return info

    def _text(self) -> str:
        size = self._count(1)
        raw = self._data[self._at : self._at + size]
        self._at += size
        return raw.decode("utf-8")

    def _count(self, least: int) -> int:
        """A number of things of at least so many bytes each, which must be in the file."""
        count = self._number("Q")
        if count * least > len(self._data) - self._at:
            raise IndexError(count)
        return int(count)

    def _number(self, letter: str) -> Any:
        value = struct.unpack_from(f"<{letter}", self._data, self._at)[0]
        self._at += struct.calcsize(letter)
        return value


def _row_bytes(kind: int, shape: tuple[int, ...]) -> tuple[str, int]:
    """The name of a ggml type, and the bytes of a row of it; raises `ValueError`."""
    import gguf

    ggml_type = gguf.GGMLQuantizationType(kind)
    block, size = gguf.GGML_QUANT_SIZES[ggml_type]
    row = prod(shape[1:])
    if shape[-1] % block or row % block:
        raise ValueError(shape)
    row_bytes: int = row // block * size
    return ggml_type.name, row_bytes


def cached_folder(path: Path, file_stamps: list[list[str | int]]) -> Path:
    """The path of a file's model folder, be it there or not, from the `stamps` of its files."""
    short = path.stem.encode(errors="replace")[:_LONGEST].decode(errors="ignore")
    return user_cache() / "gguf" / f"{short}-{_digest(repr((_FORMAT, file_stamps)))[:12]}"


def quick_header(path: Path) -> Header:
    """Read a header as `read_header` does, but without the tokenizer's arrays in its metadata."""
    paths = shards(path)
    copy = cached_folder(path, stamps(paths)) / HEADER
    try:
        return _parsed(paths, copy.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        header = read_header(path)
        return Header(header.paths, _small(header.metadata), header.tensors)


def header_text(header: Header) -> str:
    """The content of `HEADER`: the header as JSON, and its digest."""
    tensors = {
        name: [header.paths.index(info.path), info.type, info.shape, info.offset, info.row_bytes]
        for name, info in header.tensors.items()
    }
    text = json.dumps({"metadata": _small(header.metadata), "tensors": tensors})
    return json.dumps({"sha256": _digest(text), "header": text})


def _parsed(paths: tuple[Path, ...], content: str) -> Header:
    copy = json.loads(content)
    if _digest(copy["header"]) != copy["sha256"]:
        raise ValueError(copy["sha256"])
    header = json.loads(copy["header"])
    tensors = {
        name: TensorInfo(paths[part], kind, tuple(shape), offset, row_bytes)
        for name, (part, kind, shape, offset, row_bytes) in header["tensors"].items()
    }
    return Header(paths, header["metadata"], tensors)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _small(metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in metadata.items()
        if not (key.startswith("tokenizer.ggml.") and isinstance(value, list))
    }
