"""Where a family's files keep the weights that a plan names: alone, or as rows of a fused one.

Rows of q and k come in the order of Llama's: rotary embedding turns number i of a head together
with number i + head_size / 2. Attention does not mind in which order a head's numbers are, so other
orders are brought to this one when rows are read, and whole rows change places, of blocks too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from trtla.formats.config import CheckpointConfig
from trtla.formats.families import BY_ARCHITECTURE, Family
from trtla.formats.plan import hf_shapes

_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
_TURNED = ("q_proj", "k_proj", "q_norm", "k_norm")
Shapes = dict[str, tuple[int, ...]]
ReadRows = Callable[[int, int], ndarray]
"""Rows [start, stop) of a stored tensor."""


@dataclass(frozen=True, slots=True)
class StoredForm:
    """Rows of a stored tensor that are one of a plan's."""

    name: str
    """The stored tensor's."""
    first: int = 0
    order: tuple[int, ...] = ()
    """Of a head's rows, the stored place of each; empty: as they are."""
    offset: float = 0.0
    """What is added to the stored numbers."""

    def read(self, start: int, stop: int, read: ReadRows) -> ndarray:
        """Rows [start, stop) of the plan's tensor."""
        if self.order:
            return self._turned(start, stop, read)
        rows = read(self.first + start, self.first + stop)
        return rows if not self.offset else rows.astype(np.float32) + np.float32(self.offset)

    def _turned(self, start: int, stop: int, read: ReadRows) -> ndarray:
        size = len(self.order)
        begin, end = start // size * size, -(-stop // size) * size
        rows = read(self.first + begin, self.first + end)
        heads = rows.reshape(-1, size, *rows.shape[1:])[:, list(self.order)].reshape(rows.shape)
        kept: ndarray = heads[start - begin : stop - begin]
        return kept if not self.offset else kept.astype(np.float32) + np.float32(self.offset)


def stored_shapes(config: CheckpointConfig) -> Shapes:
    """Every tensor of a model's files with its shape, by Hugging Face's names."""
    shapes: Shapes = {}
    for name, shape in hf_shapes(config).items():
        fused = _fused_name(name) if _family(config).fused else name
        rows = shape[0] + shapes.get(fused, (0,))[0] if fused != name else shape[0]
        shapes[fused] = (rows, *shape[1:])
    return shapes


def stored_forms(config: CheckpointConfig, *, gguf: bool) -> dict[str, StoredForm]:
    """Where each of the plan's tensors lies, in a GGUF file or in Hugging Face's."""
    family, begun = _family(config), dict[str, int]()
    order = _order(config, pairs=family.pairs)
    forms = {}
    for name, shape in hf_shapes(config).items():
        fused = _fused_name(name) if family.fused else name
        first = begun.get(fused, 0)
        begun[fused] = first + shape[0]
        turned = name.split(".")[-2] in _TURNED
        offset = float(config.offset_norms and not gguf and "norm" in name)
        forms[name] = StoredForm(fused, first, order if turned else (), offset)
    return forms


def _family(config: CheckpointConfig) -> Family:
    return BY_ARCHITECTURE[config.architecture]


def _fused_name(name: str) -> str:
    """The stored tensor of which this one may be a part."""
    parts = ((fused, part) for fused, parts in _FUSED.items() for part in parts)
    return next((name.replace(part, fused) for fused, part in parts if part in name), name)


def _order(config: CheckpointConfig, *, pairs: bool) -> tuple[int, ...]:
    """The stored place of each number of a head; empty: they are in place."""
    size, turned = config.head_size, config.rotary_size
    places = np.arange(size)
    if pairs:
        places[:turned] = np.concatenate((places[:turned:2], places[1:turned:2]))
    first, second = np.split(places[:turned], 2)
    third, fourth = np.split(places[turned:], [(size - turned) // 2])
    found = np.concatenate((first, third, second, fourth)).tolist()
    return () if found == list(range(size)) else tuple(found)
