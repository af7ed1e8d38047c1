"""Temporary files and folders, and the removal of those that a killed process has left.

Who writes one holds a lock on it, which ends with the process, however that ends: what is old and
not locked is nobody's.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STALE_SECONDS = 60.0  # one this old has been locked, unless it is abandoned
_OWN = re.compile(r"\..+\.[0-9a-f]{12}|\.compile-\w{8}")  # the last: of an earlier trtla


def temporary_name(name: str) -> str:
    """A hidden name of its own, for what will be called `name`."""
    return f".{name}.{secrets.token_hex(6)}"


def is_temporary(name: str) -> bool:
    """Whether it is one of `temporary_name`."""
    return _OWN.fullmatch(name) is not None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file or folder that ends with the process.

    Raises:
        OSError: another process has it, or there are no locks on this disk.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """As `locked`, until the descriptor is closed."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked_where_possible(path: Path) -> Iterator[None]:
    """As `locked`, but for errors: where there are no locks nothing is ever taken for abandoned."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove those that are old, and that no process has locked."""
    for path in paths:
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                with locked(path):
                    _remove(path)


def remove_temporary(folder: Path) -> None:
    """Remove the abandoned ones of a folder's temporary files and folders."""
    with suppress(OSError):
        remove_abandoned(path for path in folder.iterdir() if is_temporary(path.name))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
