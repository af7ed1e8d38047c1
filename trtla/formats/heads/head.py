"""A head as its files say: its shape, the layers it reads, and its tensors by one set of names.

An EAGLE-3 head (arXiv 2503.01840) is one decoder layer over the target's states and the next
token's embedding; Medusa's (arXiv 2401.10774) are small networks over the last state alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from trtla.formats.config import CheckpointConfig


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """The shape of an EAGLE-3 head."""

    layer: CheckpointConfig
    """A Llama of one layer with the head's sizes, RoPE and epsilon; its vocabulary is the draft
    vocabulary."""
    vocab_size: int
    """The target's."""
    target_hidden_size: int
    boundaries: tuple[int, ...]
    """Layers of the target that were applied to each state that it reads; rising, from 1. Empty:
    its files name none, and it was read without its target."""
    fc_norm: bool = False
    """Each state is normalised before they are joined (EAGLE-3.1)."""
    input_norm: bool = False
    """The joined states are normalised (speculators' `norm_before_fc`)."""
    norm_before_residual: bool = False
    """The residual is the normalised state."""
    norm_output: bool = False
    """The next pair gets the normalised output (EAGLE-3.1), which lm_head reads as well."""

    @property
    def num_taps(self) -> int:
        """The number of states that it reads of each token."""
        return len(self.boundaries) or 3

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of the target whose output it reads."""
        return tuple(boundary - 1 for boundary in self.boundaries)


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """The shape of Medusa heads: head k draws the token k + 2 places behind its state's."""

    hidden_size: int
    vocab_size: int | None
    """None: they have no lm_head, and the target's serves."""
    num_heads: int
    num_layers: int
    """Residual blocks of each."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head's description, and its tensors, which are read when they are used.

    An EAGLE-3 head's tensors: fc [H, taps Ht], fc_norm.{i} [Ht], input_norm [taps Ht],
    embedding_norm [H], hidden_norm [H], q, k, v [heads x size, 2H], o, post_norm, gate, up, down,
    norm [H], lm_head [Vd, H], embedding [V, H]. Without lm_head or embedding the target's serve.
    Medusa's: {k}.{block}.weight [H, H], {k}.{block}.bias [H], {k}.lm_head [V, H], of all or none.
    """

    name: str
    """Its path."""
    config: EagleConfig | MedusaConfig
    tensors: Mapping[str, Callable[[], ndarray]]
    """Each returns a new float32 array."""
    target_ids: ndarray | None = None
    """The target's token of each token of the draft vocabulary, int64; None: they are the same."""

    def tensor(self, name: str) -> ndarray:
        return np.ascontiguousarray(self.tensors[name](), np.float32)
