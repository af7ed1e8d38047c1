"""PyTorch's `.bin` files: a state dict as a zip archive of a pickle and the numbers it names.

The pickle may name tensors and nothing else, so no code of a file is run. A pickle can also change
the state of whatever it holds: it gets nothing that others use, nor anything that was checked and
can be changed. Numbers are read as those of safetensors are, without PyTorch and without mapping
the file; only files older than PyTorch 1.6, which are no archives, are loaded by it, whole.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np
from numpy import ndarray
from numpy.lib.stride_tricks import as_strided

from trtla.errors import UsageError, require
from trtla.files import refuse_stand_in
from trtla.formats.weight_files import Entry, FileBytes, refusing, stamp

_DTYPES: dict[str, Any] = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
_LOCAL_HEADER = 30  # bytes before a record's name; the lengths of name and extra field end it
_MAX_PICKLE = 100 * 2**20  # thousands of tensors need less than one of these


class _Storage(NamedTuple):
    """Numbers in an archive: where they begin in the file, and their bytes."""

    dtype: np.dtype[Any]
    start: int
    size: int


class _Stored(NamedTuple):
    """A tensor in an archive; `steps` are its strides, in bytes."""

    entry: Entry
    steps: tuple[int, ...]

    def span(self, lengths: tuple[int, ...]) -> int:
        """Bytes from the first to behind the last number of a part of it."""
        if 0 in lengths:
            return 0
        last = sum((n - 1) * step for n, step in zip(lengths, self.steps, strict=True))
        return last + self.entry.dtype.itemsize


class BinFile:
    """A state dict in a `.bin` file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with refusing(path, "is truncated or no PyTorch file"), path.open("rb") as file:
            self._bytes = FileBytes(path, stamp(os.fstat(file.fileno())))
            archive = file.read(2) == b"PK"  # files older than PyTorch 1.6 are none
            refuse_stand_in(path)
            state = _Archive(file).load() if archive else _load_old(path)
        self._tensors = _checked(path, state)
        self.entries = {name: _entry(tensor) for name, tensor in self._tensors.items()}

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop) of a tensor with at least one dimension, in memory of their own."""
        tensor = self._tensors[name]
        if isinstance(tensor, ndarray):
            return np.array(tensor[start:stop])
        entry, lengths = tensor.entry, (stop - start, *tensor.entry.shape[1:])
        raw = np.empty(tensor.span(lengths), np.uint8)
        self._bytes.fill(raw.data, entry.offset + start * tensor.steps[0], name)
        rows: ndarray = as_strided(raw.view(entry.dtype), lengths, tensor.steps)
        return np.ascontiguousarray(rows)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        self._bytes.close()


def _entry(tensor: _Stored | ndarray) -> Entry:
    return tensor.entry if isinstance(tensor, _Stored) else Entry(tensor.dtype, tensor.shape, 0)


class _Archive(pickle._Unpickler):
    """An open archive; `load` gives the content of its pickle, with tensors as `_Stored`.

    In Python: the compiled unpickler reserves as much memory as a few bytes of a pickle ask for.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._zip = file, zipfile.ZipFile(file)
        (pickled,) = (name for name in self._zip.namelist() if name.endswith("/data.pkl"))
        self._folder = pickled.removesuffix("data.pkl")
        order = f"{self._folder}byteorder"
        if order in self._zip.namelist() and self._zip.read(order) != b"little":
            raise ValueError(order)
        if self._zip.getinfo(pickled).file_size > _MAX_PICKLE:
            raise ValueError(pickled)
        super().__init__(io.BytesIO(self._zip.read(pickled)))

    def find_class(self, module: str, name: str) -> Any:
        """The object that a name in the pickle stands for; only OrderedDict is a module's own."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _DTYPES:
            return name
        known: dict[str, Callable[..., Any]] = {
            "_rebuild_tensor_v2": lambda *parts: _tensor(*parts),
            "_rebuild_parameter": lambda tensor, *_: tensor,
        }
        if module == "torch._utils" and name in known:
            return known[name]
        if module.partition(".")[0] == "torch":
            return type(name, (_Other,), {})
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage | _Other:
        """A storage, if it is of numbers that arrays have."""
        _, kind, key, _, _ = pid
        if not isinstance(kind, str):
            return _Other()
        record = self._zip.getinfo(f"{self._folder}data/{key}")
        if record.compress_type != zipfile.ZIP_STORED:
            raise ValueError(key)
        self._file.seek(record.header_offset + _LOCAL_HEADER - 4)
        lengths = np.frombuffer(self._file.read(4), "<u2")
        start = record.header_offset + _LOCAL_HEADER + int(lengths.sum())
        if start + record.file_size > os.fstat(self._file.fileno()).st_size:
            raise ValueError(key)
        return _Storage(np.dtype(_DTYPES[kind]), start, record.file_size)


class _Other:
    """An object of PyTorch that is no plain tensor."""

    def __init__(self, *_: object) -> None:
        pass


def _tensor(
    storage: object, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object
) -> _Stored | _Other:
    if not isinstance(storage, _Storage):
        return _Other()
    numbers = (offset, *shape, *strides)
    valid = all(type(number) is int and number >= 0 for number in numbers)
    if not valid or len(shape) != len(strides) or prod(shape) > 2**63:
        raise ValueError(shape)
    dtype, start, size = storage
    entry = Entry(dtype, tuple(shape), start + offset * dtype.itemsize)
    tensor = _Stored(entry, tuple(step * dtype.itemsize for step in strides))
    if offset * dtype.itemsize + tensor.span(entry.shape) > size:
        raise ValueError(offset)
    return tensor


def _load_old(path: Path) -> Any:
    require(f"{path}, written before PyTorch 1.6,", "torch")
    import torch

    from trtla.formats.torch_tensors import as_array

    state = torch.load(path, map_location="cpu", weights_only=True)

    def array(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            return as_array(value)
        return value

    return {name: array(item) for name, item in state.items()} if isinstance(state, dict) else state


def _checked(path: Path, state: Any) -> dict[str, _Stored | ndarray]:
    if not isinstance(state, dict):
        raise UsageError(f"{path} holds no state dict", "save the model again")
    for name, value in state.items():
        if not isinstance(name, str):
            raise UsageError(
                f"{path}: a tensor is called {name!r}, which is no text",
                "save the model's state_dict() again",
            )
        if not isinstance(value, _Stored | ndarray):
            raise UsageError(f"{path}: {name} is no plain tensor", "save the model again")
    return state
