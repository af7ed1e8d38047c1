"""The tensors of a head's files: opened by their headers, read one by one.

A tensor is checked for NaN and infinities when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.bin_files import BinFile
from trtla.formats.heads.kinds import MEDUSA_FILES
from trtla.formats.hf import WeightFile, stored_tensors
from trtla.formats.tensors import FLOAT32, cast, largest
from trtla.formats.weight_files import Entry, SafetensorsFile

AGAIN = "export the head again, or use another one"
"""The hint for a head whose files are wrong."""
_PREFIX = "model."
_BUFFER = "rotary_emb.inv_freq"
"""The end of the names of buffers, which are no weights."""


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The tensors of a head by the names that they have in its files, less `model.`."""

    path: Path
    """The folder or file, for messages."""
    where: Mapping[str, tuple[WeightFile, str]]

    @property
    def entries(self) -> dict[str, Entry]:
        """The type and the shape of each tensor."""
        return {name: file.entries[own] for name, (file, own) in self.where.items()}

    def reader(self, name: str) -> Callable[[], ndarray]:
        """A function that reads a tensor as float32."""
        return partial(self._numbers, name)

    def whole(self, name: str) -> ndarray:
        """A tensor in its own type."""
        file, own = self.where[name]
        with closing(file):
            return file.read(own, 0, file.entries[own].shape[0])

    def _numbers(self, name: str) -> ndarray:
        numbers = cast(self.whole(name), FLOAT32)
        if not np.isfinite(largest(numbers)):
            raise UsageError(f"{self.path}: tensor {name} holds NaN or infinities", AGAIN)
        return numbers


def open_folder(path: Path) -> StoredHead:
    """Open the files of a folder and read their headers."""
    tensors = _medusa_file(path) or stored_tensors(path)
    where: dict[str, tuple[WeightFile, str]] = {}
    for own, file in tensors.items():
        name = own.removeprefix(_PREFIX)
        if name.endswith(_BUFFER):
            continue
        if name in where:
            raise UsageError(f"{path} holds tensor {name} twice, also as {own}", AGAIN)
        where[name] = file, own
    return StoredHead(path, where)


def _medusa_file(path: Path) -> dict[str, WeightFile] | None:
    """The tensors of a file that holds Medusa heads alone; None: there is none."""
    kinds: tuple[type[SafetensorsFile | BinFile], ...] = (SafetensorsFile, BinFile)
    for name, kind in zip(MEDUSA_FILES, kinds, strict=True):
        if (path / name).is_file():
            file = kind(path / name)
            return dict.fromkeys(file.entries, file)
    return None
