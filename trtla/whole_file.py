"""Writes a file whole or not at all: beside its place first, then in one rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> Path:
    """Replace a file's text; a failure leaves what was there, and nothing else.

    Raises:
        OSError: the disk is full, or permission is missing.
    """
    return write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: Path, data: bytes) -> Path:
    """Replace a file's bytes; a failure leaves what was there, and nothing else.

    Raises:
        OSError: the disk is full, or permission is missing.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        part.chmod(0o644)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path
