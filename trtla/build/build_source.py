"""What an engine is built from: a checkpoint or a Hugging Face folder, with the engine's dtype."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtla.build.checkpoint import Checkpoint
from trtla.build.convert import checkpoint_config, resolve_dtype
from trtla.build.folder_kind import FolderKind, folder_kind
from trtla.build.hf import HFModel
from trtla.build.hf_config import read_hf_config
from trtla.build.source import TensorSource
from trtla.config import CheckpointConfig, read_json, validate
from trtla.errors import UsageError


@dataclass(frozen=True, slots=True)
class BuildSource:
    """A folder to build from; `config` has the dtype of the engine and the folder's mapping."""

    folder: Path
    kind: FolderKind
    config: CheckpointConfig
    stored: CheckpointConfig
    """The config with the folder's own dtype."""

    @property
    def is_checkpoint(self) -> bool:
        """Whether TensorRT-LLM can read it as it is: a checkpoint of the engine's dtype."""
        return self.kind == "checkpoint" and self.config.dtype == self.stored.dtype


def read_source(folder: Path, dtype: str | None) -> BuildSource:
    """Read config.json only; without a dtype there or here, a Hugging Face folder is float16.

    Raises:
        UsageError: no such folder, an engine, or a config trtla does not support.
    """
    kind, path = _kind(folder), folder / "config.json"
    if kind == "checkpoint":
        return _checkpoint_source(
            folder, validate(CheckpointConfig, read_json(path), str(path)), dtype
        )
    config, named = read_hf_config(path)
    asked = dtype or "auto"
    if asked == "auto" and not named:
        asked = "float16"
    return BuildSource(folder, kind, checkpoint_config(config, asked), config)


def open_source(folder: Path, dtype: str | None) -> tuple[BuildSource, TensorSource]:
    """Read config.json and the headers of the weight files.

    Raises:
        UsageError: as `read_source`, or the weights do not fit the config.
    """
    kind = _kind(folder)
    if kind == "checkpoint":
        checkpoint = Checkpoint.open(folder)
        return _checkpoint_source(folder, checkpoint.config, dtype), checkpoint
    model = HFModel.open(folder)
    config = checkpoint_config(model.config, dtype or "auto")
    return BuildSource(folder, kind, config, model.config), model


def _checkpoint_source(folder: Path, stored: CheckpointConfig, dtype: str | None) -> BuildSource:
    config = stored
    if dtype is not None and dtype != "auto":
        config = stored.model_copy(update={"dtype": resolve_dtype(dtype, stored.dtype)})
    return BuildSource(folder, "checkpoint", config, stored)


def _kind(folder: Path) -> FolderKind:
    kind = folder_kind(folder)
    if kind == "engine":
        raise UsageError(
            f"{folder} is an engine already",
            "give its checkpoint or Hugging Face folder as --checkpoint-dir",
        )
    return kind
