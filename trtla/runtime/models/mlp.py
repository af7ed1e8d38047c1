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


_LEAST = 1e-20  # of chances that are divided by: corrections may choose none with more


@dataclass(frozen=True, slots=True)
class Choice:
    """The way in which a router's scores become a token's experts and their shares."""

    per_token: int
    of_chosen: bool
    """The shares of a token's experts add up to 1; else they are what all experts leave."""
    sigmoid: bool = False
    """An expert's chance is the sigmoid of its score, else the softmax over all."""
    scale: float = 1.0
    """The factor of all shares."""
    bias: Tensor | None = None
    """float32 [experts], added to scores."""
    correction: Tensor | None = None
    """float32 [experts], added to chances where experts are chosen, not to their shares."""

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's experts, best first, int64 [tokens, per_token], and their shares, float32,
        from scores [tokens, experts]. Of equal experts the first ones are chosen."""
        if self.bias is not None:
            scores = scores + self.bias
        chances = scores.sigmoid() if self.sigmoid else F.softmax(scores, dim=-1)
        rated = scores if self.correction is None else chances + self.correction
        chosen = rated.sort(dim=-1, descending=True, stable=True).indices[:, : self.per_token]
        shares = chances.gather(-1, chosen)
        if self.of_chosen:
            shares = shares / shares.sum(-1, keepdim=True).clamp(min=_LEAST)
        return chosen, shares * self.scale


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer.

    A token's experts are added up in the order of their shares, whatever other tokens there are.
    """

    router: Tensor
    """float32 [experts, hidden]."""
    experts: tuple[Mlp, ...]
    choice: Choice
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
        for place in range(self.choice.per_token):
            total = total + parts[:, place] * shares[:, place, None]
        return total if self.shared is None else total + self._shared(self.shared, states, activate)

    def _shared(self, expert: Mlp, states: Tensor, activate: Activation) -> Tensor:
        out = expert(states, activate)
        if self.shared_gate is None:
            return out
        return out * torch.sigmoid(states.float() @ self.shared_gate)[:, None].to(out.dtype)

    def routed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's experts and shares as `Choice` gives them, shares in the states' type."""
        chosen, shares = self.choice(F.linear(states.float(), self.router))
        return chosen, shares.to(states.dtype)
