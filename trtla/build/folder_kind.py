"""Tells Hugging Face models, TensorRT-LLM checkpoints and engines apart by their config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from trtla.build.atomic import restore
from trtla.config import read_json
from trtla.errors import UsageError

FolderKind = Literal["Hugging Face model", "checkpoint", "engine"]


def folder_kind(path: Path) -> FolderKind:
    """What the folder is.

    Raises:
        UsageError: it is no folder, has no readable config.json, or is none of the three.
    """
    if not path.exists():
        restore(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist", "check the path")
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder", "give a model, checkpoint or engine folder")
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{path} has no config.json", "give a Hugging Face model, checkpoint or engine folder"
        )
    kind = config_kind(read_json(path / "config.json"))
    if kind is None:
        raise UsageError(
            f"{path / 'config.json'} belongs to no kind of folder that trtla knows",
            "give a Hugging Face model, checkpoint or engine folder",
        )
    return kind


def config_kind(data: Any) -> FolderKind | None:
    """What folder a parsed config.json belongs to; None when to none of the three."""
    if not isinstance(data, dict):
        return None
    if "pretrained_config" in data or "build_config" in data:
        return "engine"
    if "architectures" in data or "model_type" in data:
        return "Hugging Face model"
    if "architecture" in data or "mapping" in data:
        return "checkpoint"
    return None
