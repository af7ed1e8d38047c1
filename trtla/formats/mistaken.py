"""Refusals of folders that are mistaken for a model's, with a hint at the right folder."""

from __future__ import annotations

from pathlib import Path

from trtla.errors import UsageError
from trtla.files import read_json


def no_model(path: Path) -> UsageError:
    """The refusal of a folder without a config.json."""
    if (path / "adapter_config.json").is_file():
        return _adapter(path)
    if (path / "params.json").is_file() and any(path.glob("consolidated.*")):
        return UsageError(
            f"{path} holds a model in Meta's original format",
            "give the model in Hugging Face's format, whose folder has a config.json",
        )
    if (path / "snapshots").is_dir() or any(path.glob("models--*")):
        configs = sorted(path.glob("**/snapshots/*/config.json"))
        hint = f"such as {configs[0].parent}" if configs else "which this one has none of"
        return UsageError(
            f"{path} is a cache of the hub, not a model", f"give a folder in its snapshots, {hint}"
        )
    return UsageError(
        f"{path} has no config.json", "give a Hugging Face model, checkpoint or engine folder"
    )


def _adapter(path: Path) -> UsageError:
    data = read_json(path / "adapter_config.json")
    base = data.get("base_model_name_or_path") if isinstance(data, dict) else None
    of = f" for {base[:100]!r}" if isinstance(base, str) and base else ""
    return UsageError(
        f"{path} holds an adapter{of} (LoRA), not a model",
        "merge it into its model, as PEFT's merge_and_unload() does, and give the merged folder",
    )
