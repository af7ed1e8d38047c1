"""What a model is, whatever its folder is called: the digest of its files.

Of large files samples are read, so that this takes no time: training changes all of the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from trtla.formats.gguf.folder import weight_file
from trtla.formats.gguf.header import MADE_OF, shards
from trtla.runtime.costs import COST_FILES

_WHOLE = 16 << 20
"""Bytes of a file up to which all of it is read."""
_SAMPLES, _SAMPLE = 256, 1 << 14


def fingerprint(folders: tuple[Path, ...]) -> str:
    """The digest of a model's files: those of its folder, and of further ones such as its
    tokenizer's."""
    found = hashlib.sha256()
    for folder in folders:
        for path in _files(folder):
            found.update(f"{path.name} {path.stat().st_size}\n".encode())
            for piece in _content(path):
                found.update(piece)
    return found.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    weights = weight_file(folder)
    yield from shards(weights) if weights else ()
    for path in sorted(folder.iterdir()):
        if path.is_file() and not _is_made(path.name):
            yield path


def _is_made(name: str) -> bool:
    """Whether a file is made in the folder on the way, such as the costs of forwards."""
    return name == MADE_OF or name.startswith(".") or fnmatch(name, COST_FILES)


def _content(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            yield file.read()
            return
        for sample in range(_SAMPLES):
            file.seek(sample * (size - _SAMPLE) // (_SAMPLES - 1))
            yield file.read(_SAMPLE)
