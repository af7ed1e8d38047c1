"""Temporary files and folders, and the removal of those that killed processes left behind.

A writer holds a lock on its file, which ends with the process, however it ends: a file that is old
and not locked is abandoned.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STALE_SECONDS = 60.0  # a writer has locked its file by then
_OWN = re.compile(r"\..+\.[0-9a-f]{12}|\.compile-\w{8}")  # the last: of an earlier trtla


def temporary_name(name: str) -> str:
    """A unique hidden name for a file that will be called `name`."""
    return f".{name}.{os.urandom(6).hex()}"


def is_temporary(name: str) -> bool:
    """Return True for a name of `temporary_name`."""
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
    """Lock an open file until it is closed, as `locked` does."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked_where_possible(path: Path) -> Iterator[None]:
    """As `locked`, but without errors: where there are no locks no file counts as abandoned."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(paths: Iterable[Path], seconds: float = _STALE_SECONDS) -> None:
    """Remove the paths that are older than this and not locked by any process."""
    for path in paths:
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > seconds:
                with locked(path):
                    _remove(path)


def remove_temporary(folder: Path) -> None:
    """Remove abandoned temporary files and folders from a folder."""
    with suppress(OSError):
        remove_abandoned(path for path in folder.iterdir() if is_temporary(path.name))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
