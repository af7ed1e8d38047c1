"""Temporary names, and the removal of what killed processes left under them, old and not locked."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def temporary_name(name: str) -> str:
    """A unique hidden name for a file that will be called `name`."""
    return f".{name}.{os.urandom(6).hex()}"


def is_temporary(path: Path) -> bool:
    """Return True for a name of `temporary_name`."""
    return re.fullmatch(r"\..+\.[0-9a-f]{12}", path.name) is not None


@contextmanager
def locked(path: Path, *errors: type[OSError]) -> Iterator[None]:
    """Hold a lock on a file or folder that ends with the process; without a lock on these errors.

    Raises:
        OSError: another process has it, or there are no locks on this disk.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(*errors):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(paths: Iterable[Path], seconds: float = 60.0) -> None:
    """Remove the paths that are not locked, and so old that a writer would have locked them."""
    for path in paths:
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > seconds:
                with locked(path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
