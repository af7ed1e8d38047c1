"""Reading of a trained head from its folder or GGUF file, and its check against a model."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from trtla.errors import UsageError, named
from trtla.files import read_json
from trtla.formats.config import CheckpointConfig
from trtla.formats.gguf.header import is_gguf, quick_header
from trtla.formats.heads.draft_vocabulary import draft_vocabulary
from trtla.formats.heads.eagle_config import default_boundaries, parse_eagle
from trtla.formats.heads.eagle_tensors import eagle_head, eagle_shapes
from trtla.formats.heads.gguf_head import read_gguf_head
from trtla.formats.heads.head import EagleConfig, Head
from trtla.formats.heads.kinds import (
    EAGLE3,
    MEDUSA,
    MEDUSA_FILES,
    folder_kind,
    gguf_kind,
    kind_by_tensors,
    refuse_other,
)
from trtla.formats.heads.medusa import has_medusa_names, medusa_head, medusa_shapes
from trtla.formats.heads.stored import AGAIN, open_folder
from trtla.formats.hub import hub_folder
from trtla.formats.model_folder import CONFIG

_CLASSES = "architectures"


def read_head(
    path: str | Path,
    layers: tuple[int, ...] | None = None,
    target: CheckpointConfig | None = None,
) -> Head:
    """Read the description of a head and the headers of its files; tensors are read later.

    Args:
        path: a folder, a GGUF file, or a name on the hub.
        layers: the boundaries, in place of those of its files.
        target: the model that it drafts for; the head is checked against it. Without it a head
            whose files name no layers has no boundaries.
    """
    local = hub_folder(path)
    head = _read(str(path), local, layers, target)
    if target is not None:
        check_fits(head, target)
    return head


def check_fits(head: Head, target: CheckpointConfig) -> None:
    """Refuse a model for which the head was not trained, by its sizes and its layers."""
    config, eagle = head.config, isinstance(head.config, EagleConfig)
    hidden = config.target_hidden_size if isinstance(config, EagleConfig) else config.hidden_size
    sizes = {
        "vocab_size": (config.vocab_size, target.vocab_size),
        "hidden_size": (hidden, target.hidden_size),
    }
    for key, (ours, theirs) in sizes.items():
        if ours not in (None, theirs):
            raise UsageError(
                f"{head.name} holds {EAGLE3 if eagle else MEDUSA} for a {key} of {ours}, and the "
                f"model has {theirs}",
                "use a head that was trained for this model",
            )
    if isinstance(config, EagleConfig):
        _check_layers(config, target, head.name)


def _check_layers(config: EagleConfig, target: CheckpointConfig, where: str) -> None:
    count = target.num_hidden_layers
    last = (config.boundaries or default_boundaries(target, Path(where)))[-1]
    if last > count:
        raise UsageError(
            f"{where} reads layer {last}, and the model has {count} layers",
            f"use the head of this model, or name other layers with {named('head_layers')}",
        )


def parameters(head: Head) -> int:
    """The count of numbers in a head's own tensors."""
    config = head.config
    known = eagle_shapes(config) if isinstance(config, EagleConfig) else medusa_shapes(config)
    return sum(prod(known[name]) for name in head.tensors)


def drafter_at(path: str | Path) -> str | None:
    """What a folder or a GGUF file holds, if it is a trained drafter; None: it is none."""
    local = hub_folder(path)
    if is_gguf(local):
        return gguf_kind(quick_header(local).metadata.get("general.architecture"))
    try:
        return folder_kind(local, _config(local))
    except UsageError:
        return None


def _read(
    name: str, path: Path, layers: tuple[int, ...] | None, target: CheckpointConfig | None
) -> Head:
    if is_gguf(path):
        return read_gguf_head(name, path, layers, target)
    if not path.exists():
        raise UsageError(f"{path} does not exist", "check the path")
    if not path.is_dir():
        raise UsageError(
            f"{path} is not a folder", "give the folder that holds the head, or a GGUF file"
        )
    config = _config(path)
    kind = folder_kind(path, config)
    if kind not in (None, EAGLE3, MEDUSA):
        refuse_other(path, kind, None)
    stored = open_folder(path)
    if kind is None and has_medusa_names(stored.where):
        kind = MEDUSA
    kind = kind_by_tensors(stored.where, kind)
    refuse_other(path, kind, _class(config))
    if kind == MEDUSA:
        if layers:
            raise UsageError(
                f"{path} holds Medusa heads, which read the last state alone",
                f"omit {named('head_layers')}",
            )
        return medusa_head(name, stored, config)
    parsed = parse_eagle(config, path / CONFIG, layers, target)
    ids = draft_vocabulary(stored, parsed.layer.vocab_size, parsed.vocab_size)
    return eagle_head(name, stored, parsed, ids)


def _config(path: Path) -> dict[str, Any]:
    """The content of a folder's config.json; files of Medusa heads may be without one."""
    if not (path / CONFIG).is_file():
        if any((path / name).is_file() for name in MEDUSA_FILES):
            return {}
        raise UsageError(
            f"{path} has no config.json",
            "give a folder with an EAGLE-3 head or Medusa heads, or a GGUF file",
        )
    data = read_json(path / CONFIG)
    if not isinstance(data, dict):
        raise UsageError(f"{path / CONFIG} holds no JSON object", AGAIN)
    return data


def _class(config: dict[str, Any]) -> object:
    listed = config.get(_CLASSES)
    return listed[0] if isinstance(listed, list) and listed else None
