"""Copying of a trained head into an engine, where it is found when that is opened."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.folder import HEAD_FOLDER
from trtla.formats.gguf.header import is_gguf
from trtla.formats.heads.reading import read_head
from trtla.formats.heads.stored import open_folder
from trtla.formats.hub import hub_folder
from trtla.formats.model_folder import CONFIG

_INDEX = "*.index.json"
_OF_THIS_MODEL = (
    "give a head that was trained for this model; a small model drafts beside the engine: "
    "trtla run ENGINE --drafter draft:PATH"
)
"""The hint in place of flags that commands have which decode."""
_SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".gguf")


def head_files(path: str | Path, config: CheckpointConfig) -> dict[str, Path]:
    """The files that make a head, by their names in the engine that it goes into.

    Args:
        path: as of `read_head`; it is read, and must fit.
        config: of the model that it drafts for.
    """
    try:
        read_head(path, None, config)
    except UsageError as error:
        if error.advises():
            raise
        raise UsageError(error.message, _OF_THIS_MODEL) from None
    local = hub_folder(path)
    files = [local] if is_gguf(local) else _of_folder(local)
    start = local.parent if is_gguf(local) else local
    return {f"{HEAD_FOLDER}/{file.relative_to(start)}": file for file in files}


def _of_folder(path: Path) -> list[Path]:
    weights = {file.path for file, _ in open_folder(path).where.values()}
    beside = [path / CONFIG, *path.glob(_INDEX)]
    return sorted({*(file for file in beside if file.is_file()), *weights})


def copy_head(files: Mapping[str, Path], engine: Path) -> None:
    """Copy the files of `head_files` into an engine's folder."""
    for name, file in files.items():
        place = engine / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def is_copied_head(path: Path) -> bool:
    """Return True for a folder that holds no files but those of a head."""
    return path.is_dir() and all(entry.suffix in _SUFFIXES for entry in path.iterdir())
