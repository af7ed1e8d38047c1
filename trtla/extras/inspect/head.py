"""The description of a trained head: an EAGLE-3 head or Medusa heads, and the model it fits.

Only config files and the headers of weight files are read.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from trtla.errors import UsageError
from trtla.extras.inspect.model import by_type
from trtla.formats.gguf.header import is_gguf, read_header, shards
from trtla.formats.heads.head import EagleConfig, Head, MedusaConfig
from trtla.formats.heads.reading import drafter_at, parameters, read_head
from trtla.formats.heads.stored import open_folder
from trtla.formats.hub import hub_folder
from trtla.formats.model import Model

_FLAGS = ("fc_norm", "input_norm", "norm_before_residual", "norm_output")
_NO_LAYERS = (
    "its files name no layers, which then are 2, L/2 and L-3 of a model of L layers; give others "
    "with --head-layers"
)


def is_head(path: str) -> bool:
    """Return True for a trained head, and for other trained drafters, which are refused by name."""
    return drafter_at(path) is not None


def describe_head(path: str, target: str | None, layers: tuple[int, ...] | None) -> dict[str, Any]:
    """Describe a head in JSON types; one that is broken or does not fit has problems.

    Args:
        target: the model that it has to fit; None: it is described alone.
        layers: boundaries in place of those of its files.
    """
    local = hub_folder(path)
    files = shards(local) if is_gguf(local) else local.iterdir()
    described: dict[str, Any] = {
        "path": str(local),
        "kind": str(drafter_at(local)).removeprefix("an ").removeprefix("a "),
        "bytes": sum(file.stat().st_size for file in files if file.is_file()),
        "notes": [],
        "target": target,
    }
    model = None if target is None else Model.at(target).config
    problem: UsageError | None = None
    try:
        head = read_head(path, layers)
        described |= _sizes(head)
        described["weight_types"] = by_type(_weights(local))
        if model is not None:
            described |= _sizes(read_head(path, layers, model))
        elif not described.get("layers", True):
            described["notes"].append(_NO_LAYERS)
    except UsageError as error:
        problem = error
    described["fits"] = None if model is None else problem is None
    described["next"] = None if problem else _next(path, target, layers)
    described["problems"] = [problem.message] if problem else []
    described["hint"] = problem.hint if problem else None
    return described


def _sizes(head: Head) -> dict[str, Any]:
    config, count = head.config, {"parameters": parameters(head)}
    sizes = _medusa(config) if isinstance(config, MedusaConfig) else _eagle(config, head)
    return {**sizes, **count}


def _medusa(config: MedusaConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "target_hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "num_layers": config.num_layers,
    }


def _eagle(config: EagleConfig, head: Head) -> dict[str, Any]:
    layer = config.layer
    return {
        "vocab_size": config.vocab_size,
        "draft_vocab_size": layer.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "layers": list(config.boundaries),
        "norms": [flag for flag in _FLAGS if getattr(config, flag)],
        "own": [name for name in ("embedding", "lm_head") if name in head.tensors],
        "dtype": layer.dtype,
        "shape": {
            "hidden_size": layer.hidden_size,
            "intermediate_size": layer.intermediate_size,
            "num_attention_heads": layer.num_attention_heads,
            "num_key_value_heads": layer.num_key_value_heads,
            "head_size": layer.head_size,
            "rotary_base": layer.rotary_base,
            "rotary_scaling": layer.rope_type,
            "window": layer.shortest_window,
        },
    }


def _weights(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield type, numbers and bytes of each tensor."""
    if is_gguf(path):
        for info in read_header(path).tensors.values():
            yield info.type, prod(info.shape), info.shape[0] * info.row_bytes
        return
    for entry in open_folder(path).entries.values():
        numbers = prod(entry.shape)
        yield entry.dtype.name, numbers, numbers * entry.dtype.itemsize


def _next(path: str, target: str | None, layers: tuple[int, ...] | None) -> str:
    """Return the command that drafts with a sound head; MODEL is a model to find."""
    line = ["trtla", "run", target or "MODEL", "Once upon a time", "--drafter", f"head:{path}"]
    if layers:
        line += ["--head-layers", ",".join(map(str, layers))]
    return shlex.join(line)
