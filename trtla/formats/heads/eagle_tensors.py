"""The tensors of an EAGLE-3 head: their names in files, and their shapes by its config.

Everything is checked by headers, before a tensor is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from numpy import ndarray

from trtla.errors import UsageError, named
from trtla.formats.config import as_dtype
from trtla.formats.heads.draft_vocabulary import D2T, T2D
from trtla.formats.heads.head import EagleConfig, Head
from trtla.formats.heads.stored import AGAIN, StoredHead
from trtla.formats.weight_files import Entry, raise_first, tensor_problems

_OUTSIDE = {"fc": "fc", "input_norm": "input_norm", "norm": "norm"}
_INSIDE = {
    "embedding_norm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "post_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_OWN = {"lm_head": "lm_head", "embedding": "embed_tokens"}
"""Tensors without which the target's serve."""
_GGUF = {
    "fc": "fc",
    "input_norm": "enc.output_norm",
    "embedding_norm": "blk.0.attn_norm",
    "hidden_norm": "blk.0.attn_norm_2",
    "q": "blk.0.attn_q",
    "k": "blk.0.attn_k",
    "v": "blk.0.attn_v",
    "o": "blk.0.attn_output",
    "post_norm": "blk.0.ffn_norm",
    "gate": "blk.0.ffn_gate",
    "up": "blk.0.ffn_up",
    "down": "blk.0.ffn_down",
    "norm": "output_norm",
    "lm_head": "output",
    "embedding": "token_embd",
}
_NORMS = {"fc_norm": "fc_norm.0", "norm_before_fc": "input_norm"}
"""Flags, and a tensor that is there where the flag is true."""


def file_names(stored: StoredHead, taps: int, *, gguf: bool) -> dict[str, str]:
    """The name in the files of each tensor that a head may have."""
    if gguf:
        names = _GGUF
    else:
        layer = "layers.0" if any(name.startswith("layers.0.") for name in stored.where) else None
        inside = {ours: f"{layer or 'midlayer'}.{theirs}" for ours, theirs in _INSIDE.items()}
        norms = {f"fc_norm.{index}": f"fc_norm.{index}" for index in range(taps)}
        names = {**_OUTSIDE, **norms, **inside, **_OWN}
    return {ours: f"{theirs}.weight" for ours, theirs in names.items()}


def eagle_shapes(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a head, with an lm_head and an embedding of its own."""
    layer, target, taps = config.layer, config.target_hidden_size, config.num_taps
    hidden, inner = layer.hidden_size, layer.intermediate_size
    heads = layer.num_attention_heads * layer.head_size
    keys = layer.num_key_value_heads * layer.head_size
    norms = {f"fc_norm.{index}": (target,) for index in range(taps)} if config.fc_norm else {}
    return {
        "fc": (hidden, taps * target),
        **norms,
        **({"input_norm": (taps * target,)} if config.input_norm else {}),
        **dict.fromkeys(("embedding_norm", "hidden_norm", "post_norm", "norm"), (hidden,)),
        "q": (heads, 2 * hidden),
        **dict.fromkeys(("k", "v"), (keys, 2 * hidden)),
        "o": (hidden, heads),
        **dict.fromkeys(("gate", "up"), (inner, hidden)),
        "down": (hidden, inner),
        "lm_head": (layer.vocab_size, hidden),
        "embedding": (config.vocab_size, hidden),
    }


def eagle_head(
    name: str, stored: StoredHead, config: EagleConfig, ids: ndarray | None, *, gguf: bool = False
) -> Head:
    """The head of these files, once its tensors have been checked against its config.

    Args:
        name: its path, for the user.
        ids: the target's tokens of its draft vocabulary.
    """
    names = file_names(stored, config.num_taps, gguf=gguf)
    entries = stored.entries
    _check_norms(stored.path, config, names, entries)
    _check_width(stored.path, config, entries.get(names["fc"]))
    wanted = {ours: shape for ours, shape in eagle_shapes(config).items() if ours in names}
    for own in _OWN:
        if names[own] not in entries and _targets_serves(own, config):
            del wanted[own]
    expected = {names[ours]: shape for ours, shape in wanted.items()}
    rest = {key: entry for key, entry in entries.items() if key not in (D2T, T2D)}
    raise_first(tensor_problems(str(stored.path), rest, expected, AGAIN))
    dtype = as_dtype(entries[names["fc"]].dtype.name) or "float32"
    layer = config.layer.model_copy(update={"dtype": dtype})
    readers = {ours: stored.reader(names[ours]) for ours in wanted}
    return Head(name, replace(config, layer=layer), readers, ids)


def _targets_serves(own: str, config: EagleConfig) -> bool:
    """Return True if the target's embedding or lm_head may stand for a head's own."""
    layer = config.layer
    same = layer.hidden_size == config.target_hidden_size
    return same and (own == "embedding" or layer.vocab_size == config.vocab_size)


def _check_norms(
    path: Path, config: EagleConfig, names: Mapping[str, str], entries: Mapping[str, Entry]
) -> None:
    """Refuse a norm without its flag, and a flag without its norm."""
    flags = {"fc_norm": config.fc_norm, "norm_before_fc": config.input_norm}
    for key, ours in _NORMS.items():
        tensor = names.get(ours, f"{ours}.weight")
        if flags[key] and tensor not in entries:
            raise UsageError(f'{path}: "{key}" is true, and there is no tensor {tensor}', AGAIN)
        if not flags[key] and tensor in entries:
            raise UsageError(f'{path} holds tensor {tensor}, and "{key}" is not true', AGAIN)


def _check_width(path: Path, config: EagleConfig, fc: Entry | None) -> None:
    """Refuse another number of layers than fc reads."""
    taps, size = config.num_taps, config.target_hidden_size
    if fc is None or len(fc.shape) != 2 or fc.shape[1] == taps * size:
        return
    raise UsageError(
        f"{path}: fc has {fc.shape[1]} inputs, and {taps} layers of {size} numbers give "
        f"{taps * size}",
        f"name as many layers as it reads with {named('head_layers')}, or use another head",
    )
