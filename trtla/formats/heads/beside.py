"""Finding of a trained head beside its model: `head/` in a folder, or a file beside a GGUF file."""

from __future__ import annotations

from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.folder import HEAD_FOLDER
from trtla.formats.gguf.header import MADE_OF
from trtla.formats.heads.kinds import is_head_file
from trtla.formats.model_folder import ModelFolder


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
    heads = [other for other in others if is_head_file(other)]
    fitting = [head for head in heads if _fits(head, config)] if len(heads) > 1 else heads
    return fitting[0] if len(fitting) == 1 else None


def _fits(path: Path, config: CheckpointConfig) -> bool:
    from trtla.formats.heads.reading import read_head

    try:
        read_head(path, None, config)
    except UsageError:
        return False
    return True
