"""A layer's mixture of experts in PyTorch: a router gives each token some experts, and a share to
each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.runtime.models.layers import Linear, LinearPair

Activation = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Expert:
    """The two products of one expert."""

    gate_up: LinearPair
    down: Linear


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer.

    A token's experts are added up in the order of their shares, whatever other tokens there are.
    """

    router: Tensor
    """float32 [experts, hidden]."""
    experts: tuple[Expert, ...]
    per_token: int
    of_chosen: bool
    """The shares of a token's experts are the softmax over these, else over all experts."""

    def __call__(self, states: Tensor, activate: Activation) -> Tensor:
        """The sums of experts for states [tokens, hidden], in their type."""
        chosen, shares = self.routed(states)
        parts = states.new_empty((*chosen.shape, states.shape[1]))
        for number in torch.unique(chosen).tolist():
            rows, places = (chosen == number).nonzero(as_tuple=True)
            expert = self.experts[number]
            parts[rows, places] = expert.down(activate(*expert.gate_up(states[rows])))
        total = torch.zeros_like(states)
        for place in range(self.per_token):
            total = total + parts[:, place] * shares[:, place, None]
        return total

    def routed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's experts, best first, int64 [tokens, per_token], and their shares in the
        states' type. Of equal experts the first ones are chosen."""
        scores = states.float() @ self.router.t()
        best, chosen = scores.sort(dim=-1, descending=True, stable=True)
        best, chosen = best[:, : self.per_token], chosen[:, : self.per_token]
        if self.of_chosen:
            shares = F.softmax(best, dim=-1)
        else:
            shares = F.softmax(scores, dim=-1).gather(-1, chosen)
        return chosen, shares.to(states.dtype)
