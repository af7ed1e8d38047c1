"""Medusa heads (arXiv 2401.10774): residual blocks and an lm_head each, under several names.

The number of heads is that of the tensors: config.json of public ones has another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from trtla.errors import UsageError
from trtla.formats.heads.head import Head, MedusaConfig
from trtla.formats.heads.stored import AGAIN, StoredHead
from trtla.formats.weight_files import Entry, raise_first, tensor_problems

_BLOCKS = (
    r"(?:medusa_heads?\.)?(\d{1,3})\.(?:medusa_layers\.)?(\d{1,3})\.linear\.(weight|bias)",
    r"blocks\.(\d{1,3})\.layers\.(\d{1,3})\.(weight|bias)",
)
_LM_HEADS = (
    r"(?:medusa_heads?\.)?(\d{1,3})\.(?:\d{1,3}|lm_head)\.weight",
    r"lm_heads\.(\d{1,3})\.weight",
)
_WHOLE = ("layers.", "embed_tokens.", "norm.", "lm_head.")
"""Tensors of the model that such heads may be stored with."""


def medusa_head(name: str, stored: StoredHead, config: Mapping[str, Any]) -> Head:
    """The heads of these files.

    Args:
        name: their path, for the user.
    """
    names = {ours: own for own in stored.where if (ours := _canonical(own)) is not None}
    shape = _shape(stored, names)
    for key, size in (("hidden_size", shape.hidden_size), ("vocab_size", shape.vocab_size)):
        if size is not None and config.get(key) not in (None, size):
            raise UsageError(
                f'{stored.path}: "{key}" is {config[key]}, and the heads have {size}', AGAIN
            )
    wanted = medusa_shapes(shape)
    expected = {names.get(ours, ours): size for ours, size in wanted.items()}
    raise_first(tensor_problems(str(stored.path), _entries(stored), expected, AGAIN))
    return Head(name, shape, {ours: stored.reader(names[ours]) for ours in wanted})


def medusa_shapes(config: MedusaConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, by a `Head`'s names."""
    hidden, found = config.hidden_size, dict[str, tuple[int, ...]]()
    for head in range(config.num_heads):
        for block in range(config.num_layers):
            found[f"{head}.{block}.weight"] = (hidden, hidden)
            found[f"{head}.{block}.bias"] = (hidden,)
        if config.vocab_size is not None:
            found[f"{head}.lm_head"] = (config.vocab_size, hidden)
    return found


def has_medusa_names(names: Iterable[str]) -> bool:
    """Return True if tensors are named as those of Medusa heads."""
    return any(_canonical(name) is not None for name in names)


def _canonical(name: str) -> str | None:
    """A `Head`'s name of a tensor; None: it is none of a Medusa head."""
    for pattern in _BLOCKS:
        if match := re.fullmatch(pattern, name):
            head, block, last = match.groups()
            return f"{int(head)}.{int(block)}.{last}"
    for pattern in _LM_HEADS:
        if match := re.fullmatch(pattern, name):
            return f"{int(match[1])}.lm_head"
    return None


def _shape(stored: StoredHead, names: Mapping[str, str]) -> MedusaConfig:
    """The sizes, from the names and the first lm_head: of older ones, without any, a block."""
    heads = {int(ours.split(".")[0]) for ours in names}
    blocks = {int(ours.split(".")[1]) for ours in names if not ours.endswith("lm_head")}
    shared = not any(ours.endswith("lm_head") for ours in names)
    first = names.get("0.0.weight" if shared else "0.lm_head")
    if first is None:
        lacking = "first block" if shared else "lm_head"
        raise UsageError(f"{stored.path} lacks the {lacking} of head 0", AGAIN)
    shape = stored.entries[first].shape
    if len(shape) != 2:
        raise UsageError(f"{stored.path}: tensor {first} has shape {list(shape)}", AGAIN)
    return MedusaConfig(
        hidden_size=shape[1],
        vocab_size=None if shared else shape[0],
        num_heads=max(heads) + 1,
        num_layers=max(blocks, default=-1) + 1,
    )


def _entries(stored: StoredHead) -> dict[str, Entry]:
    """Tensors of the heads, and those that are not known."""
    return {name: entry for name, entry in stored.entries.items() if not name.startswith(_WHOLE)}
