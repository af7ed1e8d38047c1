"""Medusa heads on CPUs: packed matrices, each multiplied with the last states of all requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy import ndarray

from trtla.formats.heads.head import Head, MedusaConfig
from trtla.runtime.models.cpu import library as native
from trtla.runtime.models.cpu.llama import NativeLlama
from trtla.runtime.models.heads.head_model import ROW, MedusaModel
from trtla.runtime.models.heads.native_head import normalised
from trtla.runtime.models.heads.panels import WeightTypes, pack_medusa


class NativeMedusa(MedusaModel):
    """Heads beside a compiled target, whose types of weights and activations they have.

    Args:
        config: of the heads.
        target: the model that they draft for; its lm_head serves where they have none.
    """

    def __init__(self, head: Head, config: MedusaConfig, target: NativeLlama) -> None:
        self.taps, self._config = (target.config.num_hidden_layers - 1,), config
        types = WeightTypes(target.layer_type, target.ends[1].stored)
        self._panels = pack_medusa(head, config, types, target.dtype)
        self._norm, self._epsilon = target.norm, target.config.norm_epsilon
        self._shared = target.ends[1]
        self._library, self._chooser = native.library(), native.RowChooser()

    @property
    def weight_bytes(self) -> int:
        return sum(matrix.weight.nbytes for matrix in self._panels.matrices.values())

    def rows(self, states: ndarray) -> tuple[ndarray, ndarray]:
        last = normalised(states, self._norm, self._epsilon)
        ids, logs = zip(*(self._top(logits) for logits in self._logits(last)), strict=True)
        return self._by_token(ids), self._by_token(logs)

    def _logits(self, last: ndarray) -> Iterator[ndarray]:
        """The logits of one head after the other, or of all where they share an lm_head."""
        matrices, heads = self._panels.matrices, range(self._config.num_heads)
        if self._config.vocab_size is None:
            joined = np.concatenate([self._through(head, last) for head in heads])
            yield self._library.multiply(self._shared.matrix, joined)
            return
        for head in heads:
            matrix = matrices[f"{head}.lm_head"].matrix
            yield self._library.multiply(matrix, self._through(head, last))

    def _through(self, head: int, states: ndarray) -> ndarray:
        """States behind a head's residual blocks."""
        states = np.ascontiguousarray(states, np.float32)
        for block in range(self._config.num_layers):
            matrix = self._panels.matrices[f"{head}.{block}.weight"].matrix
            states = states + _silu(self._library.multiply(matrix, states))
        return states

    def _top(self, logits: ndarray) -> tuple[ndarray, ndarray]:
        ids, logs = self._chooser.top_rows(logits, range(len(logits)), ROW)
        return ids.copy(), logs.copy()

    def _by_token(self, parts: tuple[ndarray, ...]) -> ndarray:
        by_head = np.concatenate(parts).reshape(self._config.num_heads, -1, ROW)
        turned: ndarray = by_head.swapaxes(0, 1)
        return turned


def _silu(numbers: ndarray) -> ndarray:
    half = numbers * np.float32(0.5)
    out: ndarray = half * (1 + np.tanh(half))
    return out
