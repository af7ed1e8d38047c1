"""A trained head's weights as the compiled forward reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from trtla.formats.blocks import BLOCK_TYPES, BlockTensor
from trtla.formats.heads.eagle_tensors import eagle_shapes
from trtla.formats.heads.head import EagleConfig, Head, MedusaConfig
from trtla.formats.heads.medusa import medusa_shapes
from trtla.formats.tensors import Weight, numpy_dtype
from trtla.runtime.models.cpu.packing import LM_HEAD, ModelPanels, Packed, Packer
from trtla.runtime.models.kv_cache import check_memory
from trtla.runtime.models.rounding import INTEGERS, check_numbers, round_rows

FC, QKV, DENSE, GATE_UP, DOWN = "fc", "qkv", "dense", "gate_up", "down"
OWN_EMBEDDING = "embedding"
"""Names of a head's matrices, beside lm_head."""


def vector_names(config: EagleConfig) -> list[str]:
    """The head's vectors: its norms."""
    taps = [f"fc_norm.{tap}" for tap in range(len(config.boundaries))]
    return [
        *("embedding_norm", "hidden_norm", "post_norm", "norm"),
        *(taps if config.fc_norm else ()),
        *(("input_norm",) if config.input_norm else ()),
    ]


@dataclass(frozen=True, slots=True)
class WeightTypes:
    """The types that weights are kept in: of blocks, or of plain numbers."""

    layer: str
    lm_head: str

    def of(self, name: str, inputs: int) -> str:
        """The type of a weight: a target's where the project rounds to it, else the next best."""
        wanted = self.lm_head if name in (LM_HEAD, OWN_EMBEDDING) else self.layer
        if wanted not in BLOCK_TYPES:
            return wanted
        fits = (kind for kind in (wanted, _BLOCKS) if kind in _ROUNDED)
        fitting = (kind for kind in fits if inputs % BLOCK_TYPES[kind].inputs == 0)
        return next(fitting, _PLAIN)


_ROUNDED = {kind for kinds in INTEGERS.values() for kind in kinds}
_BLOCKS, _PLAIN = "Q8_0", "bfloat16"
"""The types for targets in blocks that nothing here rounds to, and for sizes that no block fits."""


def rounded(weight: ndarray, name: str, kind: str) -> Weight:
    """A float32 weight in blocks or numbers of a type."""
    if kind not in BLOCK_TYPES:
        return weight.astype(numpy_dtype(kind), copy=False)
    check_numbers(name, weight, BLOCK_TYPES[kind])
    return BlockTensor(BLOCK_TYPES[kind], round_rows(BLOCK_TYPES[kind], weight))


def panel_bytes(head: Head, types: WeightTypes, arithmetic: str) -> int:
    """The bytes of the panels of a head's matrices, from their shapes."""
    config, packer = head.config, Packer(arithmetic)
    known = eagle_shapes(config) if isinstance(config, EagleConfig) else medusa_shapes(config)
    matrices = ((name, known[name]) for name in head.tensors if len(known[name]) == 2)
    return sum(
        packer.nbytes(_blank(rows, inputs, types.of(name.rpartition(".")[2], inputs)))
        for name, (rows, inputs) in matrices
    )


def _blank(rows: int, inputs: int, kind: str) -> Weight:
    """A weight of this shape and type that takes no memory."""
    if kind not in BLOCK_TYPES:
        return np.broadcast_to(np.zeros((), numpy_dtype(kind)), (rows, inputs))
    block = BLOCK_TYPES[kind]
    size = inputs // block.inputs * block.nbytes
    return BlockTensor(block, np.broadcast_to(np.uint8(0), (rows, size)))


def _check_room(head: Head, types: WeightTypes, arithmetic: str) -> None:
    hint = "go without the head, or use a machine with more memory"
    check_memory(head.name, panel_bytes(head, types, arithmetic), 0, hint=hint)


def pack_head(head: Head, config: EagleConfig, types: WeightTypes, arithmetic: str) -> ModelPanels:
    """A head's panels; the matrices that it lacks are the target's."""
    _check_room(head, types, arithmetic)
    packer = Packer(arithmetic)

    def stored(*names: str) -> list[Weight]:
        weights = ((name, head.tensor(name)) for name in names)
        return [rounded(one, name, types.of(name, one.shape[1])) for name, one in weights]

    matrices = {
        FC: packer.matrix(*stored("fc")),
        QKV: packer.matrix(*stored("q", "k", "v")),
        DENSE: packer.matrix(*stored("o")),
        GATE_UP: packer.matrix(*stored("gate", "up"), alternate=True),
        DOWN: packer.matrix(*stored("down")),
    }
    for name in (LM_HEAD, OWN_EMBEDDING):
        if name in head.tensors:
            matrices[name] = packer.matrix(*stored(name))
    packer.run()
    vectors = {name: np.array(head.tensor(name)) for name in vector_names(config)}
    return ModelPanels(matrices, vectors)


def pack_medusa(
    head: Head, config: MedusaConfig, types: WeightTypes, arithmetic: str
) -> ModelPanels:
    """The panels of Medusa heads, by the names of their tensors; biases go with their weights."""
    _check_room(head, types, arithmetic)
    packer = Packer(arithmetic)

    def packed(name: str, kind: str, biases: ndarray | None = None) -> Packed:
        weight = head.tensor(name)
        stored = rounded(weight, name, types.of(kind, weight.shape[1]))
        return packer.matrix(stored, biases=biases)

    matrices = {}
    for k in range(config.num_heads):
        for block in (f"{k}.{index}" for index in range(config.num_layers)):
            biases = head.tensor(f"{block}.bias")
            matrices[f"{block}.weight"] = packed(f"{block}.weight", block, biases)
        if config.vocab_size is not None:
            matrices[f"{k}.lm_head"] = packed(f"{k}.lm_head", LM_HEAD)
    packer.run()
    return ModelPanels(matrices, {})
