"""Medusa heads in PyTorch, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy import ndarray
from torch import Tensor

from trtla.formats.heads.head import Head, MedusaConfig
from trtla.runtime.models.heads.head_model import MedusaModel
from trtla.runtime.models.heads.tensor_head import top_rows
from trtla.runtime.models.layers import Linear
from trtla.runtime.sampling.logits import on_host


@dataclass(frozen=True, slots=True)
class LastLayer:
    """The end of the target: its last layer, and what follows."""

    index: int
    norm: Tensor
    epsilon: float
    lm_head: Linear
    """It serves where the heads have none."""


class TensorMedusa(MedusaModel):
    """Heads beside their target.

    Args:
        config: of the heads.
        last: of the target.
        dtype: of weights and states.
    """

    def __init__(
        self,
        head: Head,
        config: MedusaConfig,
        last: LastLayer,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.taps, self._config, self._epsilon = (last.index,), config, last.epsilon
        self._dtype, self._device = dtype, device

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(head.tensor(name)).to(device, dtype)

        def block(name: str) -> Linear:
            return Linear.of(tensor(f"{name}.weight"), tensor(f"{name}.bias"))

        heads, blocks = range(config.num_heads), range(config.num_layers)
        self._blocks = [[block(f"{k}.{index}") for index in blocks] for k in heads]
        own = config.vocab_size is not None
        self._lm_heads = [Linear.of(tensor(f"{k}.lm_head")) for k in heads] if own else []
        self._shared, self._norm = last.lm_head, last.norm.to(device, dtype)

    @property
    def weight_bytes(self) -> int:
        hidden, vocab = self._config.hidden_size, self._config.vocab_size or 0
        each = hidden * (hidden * self._config.num_layers + vocab)
        return self._dtype.itemsize * self._config.num_heads * each

    @torch.inference_mode()
    def rows(self, states: ndarray) -> tuple[ndarray, ndarray]:
        placed = torch.from_numpy(np.ascontiguousarray(states)).to(self._device, self._dtype)
        last = F.rms_norm(placed, self._norm.shape, self._norm, self._epsilon)
        through = [_through(blocks, last) for blocks in self._blocks]
        ids, logs = top_rows(self._logits(through))
        shape = self._config.num_heads, len(states), -1
        by_head = (on_host(one).reshape(shape) for one in (ids.int(), logs))
        own_ids, own_logs = (one.swapaxes(0, 1) for one in by_head)
        return own_ids, own_logs

    def _logits(self, states: list[Tensor]) -> Tensor:
        """The logits of all heads' states, head by head."""
        if not self._lm_heads:
            return self._products(self._shared, torch.cat(states))
        pairs = zip(self._lm_heads, states, strict=True)
        return torch.cat([self._products(lm_head, own) for lm_head, own in pairs])

    def _products(self, lm_head: Linear, states: Tensor) -> Tensor:
        return lm_head(states) if self._dtype == torch.float64 else lm_head.wide(states)


def _through(blocks: list[Linear], states: Tensor) -> Tensor:
    """States behind residual blocks."""
    for block in blocks:
        states = states + F.silu(block(states))
    return states
