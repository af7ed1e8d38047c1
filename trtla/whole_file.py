"""Reads and writes files whole; writes whole or not at all: beside the place, then a rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from trtla.errors import UsageError


def read_text(path: Path) -> str:
    """A UTF-8 text file, without the byte order mark that it may begin with.

    Raises:
        UsageError: it is missing or not readable.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "check the path") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})", "convert it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from None
    except ValueError:  # a NUL
        raise UsageError(f"{str(path)!r} is not a path", "check the path") from None


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
