"""Refusals of folders and files that are mistaken for a model's, with a hint at the right one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtla.errors import UsageError
from trtla.files import read_json
from trtla.formats.heads.kinds import folder_kind, gguf_kind, is_head_file, no_model_but

ADAPTER = "adapter_config.json"
_WRAPPERS = {
    "_orig_mod.": ("a compiled model (torch.compile)", "save the model inside it: model._orig_mod"),
    "module.": ("a model in DataParallel", "save the model inside it: model.module"),
    "_fsdp_wrapped_module.": ("a model in FSDP", "save its full state dict"),
    "model.model.": ("a module that has the model", "save the model inside it: module.model"),
    "base_model.model.": (
        "a model with an adapter (PEFT)",
        "save what PEFT's merge_and_unload() gives",
    ),
    **dict.fromkeys(
        ("model.language_model.", "language_model."),
        (
            "the text part of a model for images or sound",
            "give a model for texts alone, or run this one with transformers",
        ),
    ),
}
"""Beginnings of tensors' names -> the kind of file that has them, and a hint."""
_PART = re.compile(r"(_orig_mod\.|module\.|model\.|lm_head\.|layers\.|embed_tokens\.)")
_GGUF_TYPES = {
    "adapter": (
        "an adapter (LoRA)",
        "merge it into its model with llama.cpp's llama-export-lora, and give the merged file",
    ),
    "controlvector": ("a control vector", "give the file of the model that it is for"),
    "imatrix": ("an importance matrix", "give a file that was quantised with it"),
    "mmproj": (
        "the projector of a model for images or sound (mmproj)",
        "give the file of the model, without the projector, for texts alone",
    ),
    "vocab": ("a vocabulary without weights", "give a file with weights"),
}
"""Kinds of GGUF files that hold no model: what each is, and what helps."""


def no_model(path: Path) -> UsageError:
    """The refusal of a folder without a config.json."""
    if (path / ADAPTER).is_file():
        return adapter(path)
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
    if (drafter := folder_kind(path, {})) is not None:
        return no_model_but(path, drafter)
    if found := sorted(path.glob("*.gguf")):
        kind = "a GGUF file" if len(found) == 1 else f"{len(found)} GGUF files"
        file = next((file for file in found if not is_head_file(file)), found[0])
        return UsageError(f"{path} is a folder with {kind}", f"give the file, such as {file}")
    return UsageError(
        f"{path} has no config.json",
        "give the folder of a Hugging Face model or of an engine, or a GGUF file",
    )


def adapter(path: Path) -> UsageError:
    """The refusal of a folder with an adapter's weights."""
    data = read_json(path / ADAPTER)
    base = data.get("base_model_name_or_path") if isinstance(data, dict) else None
    of = f" for {base[:100]!r}" if isinstance(base, str) and base else ""
    return UsageError(
        f"{path} holds an adapter{of} (LoRA), not a model",
        "merge it into its model, as PEFT's merge_and_unload() does, and give the merged folder",
    )


def wrapped_model(path: Path, names: Iterable[str]) -> UsageError | None:
    """The refusal of weights that were saved from a wrapper of the model; None: they were not."""
    for name in names:
        for prefix, (what, hint) in _WRAPPERS.items():
            if name.startswith(prefix) and _PART.match(name.removeprefix(prefix)):
                return UsageError(
                    f"{path}: names of tensors begin with {prefix!r} ({name}), as those of {what}",
                    hint,
                )
    return None


def no_gguf_model(path: Path, metadata: Mapping[str, Any], tensors: int) -> UsageError | None:
    """The refusal of a GGUF file that holds something else than a model; None: it holds one."""
    kind, architecture = metadata.get("general.type"), metadata.get("general.architecture")
    if (drafter := gguf_kind(architecture)) is not None:
        return no_model_but(path, drafter)
    if architecture == "clip":
        kind = "mmproj"
    elif architecture == "controlvector":
        kind = "controlvector"
    elif "imatrix.datasets" in metadata:
        kind = "imatrix"
    elif not tensors:
        kind = "vocab"
    if not isinstance(kind, str) or kind not in _GGUF_TYPES:
        return None
    what, hint = _GGUF_TYPES[kind]
    return UsageError(f"{path} holds {what}, not a model", hint)
