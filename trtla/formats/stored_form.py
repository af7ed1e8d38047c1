"""The forms in which a family's files store a plan's weights: alone, or as rows of a fused one.

Rows of q and k come in the order of Llama's: rotary embedding rotates number i of a head together
with number i + head_size / 2. Attention does not depend on the order of a head's numbers, so other
orders are brought to this one when rows are read; whole rows are moved, of blocks too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from trtla.formats.config import BLOCK_SIZES, CheckpointConfig
from trtla.formats.families import BY_ARCHITECTURE
from trtla.formats.family import ExpertNames, Family
from trtla.formats.shapes import CORRECTION, SINKS, hf_shapes

_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
_EXPERT = re.compile(
    r"mlp\.(?:(gate)|experts\.(\d+)\.(gate|up|down)_proj|shared_expert\.(gate|up|down)_proj)"
    r"(?=\.(?:weight|bias)$)"
)
_GGUF_EXPERTS = ExpertNames("mlp.gate", *(f"mlp.experts.{x}_proj" for x in ("gate", "up", "down")))
"""The names that `gguf.weights` gives to tensors of all experts."""
STACKS = ("experts.gate_up_proj", "experts.down_proj")
"""The tensors of all experts in transformers 5's own modules, which it writes with
`save_original_format=False`."""
_PARTS = {"": ".weight", "_bias": ".bias", "_blocks": ".weight", "_scales": ".scales"}
"""Ends of their names in files, and in the form of modules' parameters."""
_ROUTERS = {"mlp": "mlp.gate", "block_sparse_moe": "block_sparse_moe.router"}
"""The modules that they are in, and the routers beside them."""
_ROTATED = ("q_proj", "k_proj", "q_norm", "k_norm")
_CORRECTION = re.compile(r"\.mlp\.(?:gate\.)?(?:moe_statics\.)?e_score_correction_bias$")
_SINKS = SINKS.removesuffix(".weight")
MXFP4 = "MXFP4"
"""The type of blocks that Hugging Face's files hold, codes and scales apart."""
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
    """The stored index of each of a head's rows; empty: they are in order."""
    offset: float = 0.0
    """The number added to the stored ones."""
    step: int = 1
    """The distance of its rows in the stored tensor."""
    inputs: tuple[int, int] | None = None
    """The stored rows that are its columns; then its rows are columns. None: rows are rows."""

    def read(self, start: int, stop: int, read_rows: ReadRows) -> ndarray:
        """Rows [start, stop) of the plan's tensor."""
        if self.order:
            return self._reordered(start, stop, read_rows)
        first, last = self.first + start * self.step, self.first + (stop - 1) * self.step + 1
        if self.inputs is not None:
            return np.ascontiguousarray(read_rows(*self.inputs)[:, first : last : self.step].T)
        rows = read_rows(first, last)[:: self.step]
        return rows if not self.offset else rows.astype(np.float32) + np.float32(self.offset)

    def _reordered(self, start: int, stop: int, read_rows: ReadRows) -> ndarray:
        size = len(self.order)
        begin, end = start // size * size, -(-stop // size) * size
        rows = read_rows(self.first + begin, self.first + end)
        heads = rows.reshape(-1, size, *rows.shape[1:])[:, list(self.order)].reshape(rows.shape)
        part: ndarray = heads[start - begin : stop - begin]
        return part if not self.offset else part.astype(np.float32) + np.float32(self.offset)


def canonical(name: str) -> str:
    """The name of a stored tensor as that of a module's parameter; most have it."""
    if name.endswith(_SINKS):
        return f"{name}.weight"
    if corrected := _CORRECTION.search(name):
        return f"{name[: corrected.start()]}.{CORRECTION}"
    for stack in STACKS:
        module, found, end = name.partition(stack)
        if found and end in _PARTS:
            return f"{module}{stack}{_PARTS[end]}"
    return name


def scales_of(weight: str) -> str:
    """The name of the scales of a weight in blocks, where they are another tensor."""
    return f"{weight.removesuffix('.weight')}.scales"


def stored_shapes(config: CheckpointConfig, *, gguf: bool, names: Collection[str] = ()) -> Shapes:
    """Every tensor of a model's files with its shape, by Hugging Face's names: of GGUF files, or of
    Hugging Face's own. A tensor of all experts is one of all of their rows.

    Args:
        names: of the files' tensors: they tell transformers 5's stacks from a family's own names.
    """
    shapes: Shapes = {}
    experts = _experts(config, gguf, names)
    for name, shape in hf_shapes(config).items():
        fused = _stored_name(name, _family(config), experts)
        rows = shape[0] + shapes.get(fused, (0,))[0] if fused != name else shape[0]
        shapes[fused] = (rows, *shape[1:])
    if experts is not None and experts.alternate:
        return dict(_alternating_shapes(config, shapes))
    return shapes


def _alternating_shapes(
    config: CheckpointConfig, shapes: Shapes
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shapes of files with `ExpertNames.alternate`, from those of stacks of [outputs, inputs],
    as which blocks are stored, apart from their scales."""
    for name, shape in shapes.items():
        if not name.endswith(tuple(f"{stack}.weight" for stack in STACKS)):
            yield name, shape
        elif config.block_types:
            yield name, (shape[0], shape[1] // 2)
            yield scales_of(name), (shape[0], shape[1] // BLOCK_SIZES[MXFP4][0])
        else:
            yield name, (config.num_experts * shape[1], shape[0] // config.num_experts)


def stored_forms(
    config: CheckpointConfig, *, gguf: bool, names: Collection[str] = ()
) -> dict[str, StoredForm]:
    """The stored form of each of the plan's tensors, in a GGUF file or in Hugging Face's; `names`
    as in `stored_shapes`."""
    family, begun = _family(config), dict[str, int]()
    experts = _experts(config, gguf, names)
    order = _order(config, pairs=family.pairs)
    forms = {}
    for name, shape in hf_shapes(config).items():
        fused = _stored_name(name, family, experts)
        first = begun.get(fused, 0)
        begun[fused] = first + shape[0]
        rotated = name.split(".")[-2] in _ROTATED
        offset = float(config.offset_norms and not gguf and "norm" in name)
        forms[name] = StoredForm(fused, first, order if rotated else (), offset)
        if experts is not None and experts.alternate:
            forms[name] = _alternating(config, name, shape, forms[name])
    return forms


def _alternating(
    config: CheckpointConfig, name: str, shape: tuple[int, ...], form: StoredForm
) -> StoredForm:
    """The form in files with `ExpertNames.alternate`."""
    found = _EXPERT.search(name)
    if found is None or not found[2]:
        return form
    expert, half, step = int(found[2]), int(found[3] == "up"), 1 if found[3] == "down" else 2
    if len(shape) < 2 or config.block_types:
        return StoredForm(form.name, expert * shape[0] * step + half, step=step)
    inputs = expert * shape[1], (expert + 1) * shape[1]
    return StoredForm(form.name, half, step=step, inputs=inputs)


def router_of(config: CheckpointConfig, *, gguf: bool, names: Collection[str]) -> str | None:
    """The name of the first router in a model's files, if any; arguments as of `stored_shapes`."""
    layer = next(filter(config.has_experts, range(config.num_hidden_layers)), None)
    if layer is None:
        return None
    experts = _experts(config, gguf, names)
    return _stored_name(f"model.layers.{layer}.mlp.gate.weight", _family(config), experts)


def _family(config: CheckpointConfig) -> Family:
    return BY_ARCHITECTURE[config.architecture]


def _experts(config: CheckpointConfig, gguf: bool, names: Collection[str]) -> ExpertNames | None:
    if not config.num_experts:
        return None
    if gguf:
        return _GGUF_EXPERTS
    own = _family(config).experts or ExpertNames()
    if own.alternate:
        return own
    both, down = STACKS
    for module, router in _ROUTERS.items():
        if any(name.endswith(f".{module}.{both}.weight") for name in names):
            gate, up, down = (f"{module}.{name}" for name in (both, both, down))
            return replace(own, router=router, gate=gate, up=up, down=down)
    return own


def _stored_name(name: str, family: Family, names: ExpertNames | None) -> str:
    """The stored tensor that is, or holds, this one."""
    if names is not None and (expert := _EXPERT.search(name)):
        part = "router" if expert[1] else expert[3] or f"shared_{expert[4]}"
        stem: str = getattr(names, part).format(expert[2])
        return f"{name[: expert.start()]}{stem}{name[expert.end() :]}"
    return _fused_name(name) if family.fused else name


def _fused_name(name: str) -> str:
    """The stored tensor of which this one may be a part."""
    parts = ((fused, part) for fused, parts in _FUSED.items() for part in parts)
    return next((name.replace(part, fused) for fused, part in parts if part in name), name)


def _order(config: CheckpointConfig, *, pairs: bool) -> tuple[int, ...]:
    """The stored index of each number of a head; empty: they are in order."""
    size, rotated = config.head_size, config.rotary_size
    indices = np.arange(size)
    if pairs:
        indices[:rotated] = np.concatenate((indices[:rotated:2], indices[1:rotated:2]))
    first, second = np.split(indices[:rotated], 2)
    third, fourth = np.split(indices[rotated:], [(size - rotated) // 2])
    order = np.concatenate((first, third, second, fourth)).tolist()
    return () if order == list(range(size)) else tuple(order)
