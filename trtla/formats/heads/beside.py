"""Finding of a trained head beside its model: `head/` in a folder, or a file beside a GGUF file."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.folder import HEAD_FOLDER
from trtla.formats.gguf.header import MADE_OF
from trtla.formats.model_folder import ModelFolder

_ARCHITECTURE = b"general.architecture"
_START = 256  # bytes of a GGUF file that hold its first key and value
_HEADER = 24  # of them before the first key


def head_beside(model: ModelFolder, config: CheckpointConfig) -> Path | None:
    """Return the path of the head that belongs to a model; None: there is none, or several.

    Args:
        model: its folder, which of a GGUF file is the one in the user's cache.
        config: its own, which decides among several files.
    """
    own = model.object(MADE_OF).get("path")
    if own is None:
        folder = model.path / HEAD_FOLDER
        files = sorted(folder.glob("*.gguf"))
        return files[0] if len(files) == 1 else folder if folder.is_dir() else None
    others = (other for other in sorted(Path(own).parent.glob("*.gguf")) if other != Path(own))
    heads = [other for other in others if _is_head(other)]
    fitting = [head for head in heads if _fits(head, config)] if len(heads) > 1 else heads
    return fitting[0] if len(fitting) == 1 else None


def _is_head(path: Path) -> bool:
    """Return True if a GGUF file's first entry, which is its architecture, says so."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return False
    with suppress(OSError, struct.error, OverflowError), path.open("rb") as file:
        start = file.read(_START)
        key, at = _text(start, _HEADER)
        return key == _ARCHITECTURE and _text(start, at + 4)[0] == b"eagle3"
    return False


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    """Return a text behind its length, and the place behind it."""
    (length,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + length], at + 8 + length


def _fits(path: Path, config: CheckpointConfig) -> bool:
    from trtla.formats.heads.reading import read_head

    try:
        read_head(path, None, config)
    except UsageError:
        return False
    return True
