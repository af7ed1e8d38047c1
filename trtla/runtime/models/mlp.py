"""The part of a layer behind attention in PyTorch: a gated MLP, or a mixture of them, whose router
gives each token some experts, and a share to each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.runtime.models.layers import Fp8Linear, Fp8Pair, Linear, LinearPair

Activation = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Takes the gate, what it gates, and the scale with which the result is quantised."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """A dense layer's, or one expert."""

    gate_up: LinearPair | Fp8Pair
    """gate_proj and up_proj."""
    down: Linear | Fp8Linear

    @property
    def input_scale(self) -> Tensor | None:
        """The scale of an input that is quantised."""
        return self.gate_up.input_scale

    def __call__(self, states: Tensor, activate: Activation) -> Tensor:
        """The result for states [tokens, hidden], in their type."""
        return self.down(activate(*self.gate_up(states), self.down.input_scale))


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer.

    A token's experts are added up in the order of their shares, whatever other tokens there are.
    """

    router: Tensor
    """float32 [experts, hidden]."""
    experts: tuple[Mlp, ...]
    per_token: int
    of_chosen: bool
    """The shares of a token's experts are the softmax over these, else over all experts."""
    router_bias: Tensor | None = None
    """float32 [experts]."""
    shared: Mlp | None = None
    """The expert that all tokens share."""
    shared_gate: Tensor | None = None
    """float32 [hidden]: its product with a token decides what that expert counts."""

    input_scale: ClassVar[None] = None

    def __call__(self, states: Tensor, activate: Activation) -> Tensor:
        """The sums of experts for states [tokens, hidden], in their type."""
        chosen, shares = self.routed(states)
        parts = states.new_empty((*chosen.shape, states.shape[1]))
        for number in torch.unique(chosen).tolist():
            rows, places = (chosen == number).nonzero(as_tuple=True)
            parts[rows, places] = self.experts[number](states[rows], activate)
        total = torch.zeros_like(states)
        for place in range(self.per_token):
            total = total + parts[:, place] * shares[:, place, None]
        return total if self.shared is None else total + self._shared(self.shared, states, activate)

    def _shared(self, expert: Mlp, states: Tensor, activate: Activation) -> Tensor:
        out = expert(states, activate)
        if self.shared_gate is None:
            return out
        return out * torch.sigmoid(states.float() @ self.shared_gate)[:, None].to(out.dtype)

    def routed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's experts, best first, int64 [tokens, per_token], and their shares in the
        states' type. Of equal experts the first ones are chosen."""
        scores = F.linear(states.float(), self.router, self.router_bias)
        best, chosen = scores.sort(dim=-1, descending=True, stable=True)
        best, chosen = best[:, : self.per_token], chosen[:, : self.per_token]
        if self.of_chosen:
            shares = F.softmax(best, dim=-1)
        else:
            shares = F.softmax(scores, dim=-1).gather(-1, chosen)
        return chosen, shares.to(states.dtype)
