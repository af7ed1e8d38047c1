"""A trained head's weights as the compiled forward reads them."""

from __future__ import annotations

import numpy as np

from trtla.formats.heads.head import EagleConfig, Head
from trtla.formats.tensors import Weight, numpy_dtype
from trtla.runtime.models.cpu.packing import LM_HEAD, ModelPanels, Packer

FC, QKV, DENSE, GATE_UP, DOWN = "fc", "qkv", "dense", "gate_up", "down"
OWN_EMBEDDING = "embedding"


def vector_names(config: EagleConfig) -> list[str]:
    """The head's vectors: its norms."""
    taps = [f"fc_norm.{tap}" for tap in range(len(config.boundaries))]
    return [
        *("embedding_norm", "hidden_norm", "post_norm", "norm"),
        *(taps if config.fc_norm else ()),
        *(("input_norm",) if config.input_norm else ()),
    ]


def pack_head(head: Head, config: EagleConfig, arithmetic: str) -> ModelPanels:
    """A head's panels; the matrices that it lacks are the target's."""
    packer = Packer(arithmetic)

    def stored(*names: str) -> list[Weight]:
        return [head.tensor(name).astype(numpy_dtype(arithmetic), copy=False) for name in names]

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
