"""Drawing tokens with noise that depends only on (seed, absolute position).

A position's draw is the inverse of the filtered distribution's cumulative sum at one uniform
number. Rows at the same position share the number, so plain decoding and every drafter draw the
same token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtla.runtime.executor import SamplingParams

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """The noise of one position: 53 bits in [0, 1), from two rounds of the splitmix64 finaliser."""
    return (_mix(_mix(seed) + position) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """What `draw` draws from: temperature, then top-k, then top-p; float64 [rows, vocab]."""
    kept = logits.double()
    if 0 < params.top_k < kept.shape[-1]:
        kth = kept.topk(params.top_k, dim=-1).values[:, -1:]
        kept = kept.masked_fill(kept < kth, float("-inf"))
    # Relative to the largest, so that a temperature near 0 gives 0 and -inf, not inf.
    relative = kept - kept.max(dim=-1, keepdim=True).values
    probs = (relative / params.temperature).softmax(dim=-1)
    if params.top_p < 1.0:
        probs = _nucleus(probs, params.top_p)
    return probs


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most probable tokens whose mass reaches top_p; renormalise."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    kept = torch.zeros_like(probs).scatter_(-1, order, ordered)
    return kept / kept.sum(dim=-1, keepdim=True)


def draw(logits: Tensor, params: SamplingParams, positions: Sequence[int]) -> Tensor:
    """One token per row.

    Args:
        logits: [rows, vocab].
        params: temperature above 0, filters and seed, the same for all rows.
        positions: absolute position of each row's drawn token.

    Returns:
        Token ids, int64 [rows]; a token of probability 0 is never drawn.
    """
    cumulative = probabilities(logits, params).cumsum(dim=-1)
    noise = [uniform(params.seed, position) for position in positions]
    targets = torch.tensor(noise, dtype=torch.float64, device=logits.device)
    # Scaling by the last entry keeps rounding from pushing a target past the end.
    targets = (targets * cumulative[:, -1]).unsqueeze(-1)
    index = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous()).squeeze(-1)
    return torch.minimum(index, last)


def top2_margin(logits: Tensor) -> Tensor:
    """Difference of the two largest logits of each row, [rows]."""
    top = logits.topk(min(2, logits.shape[-1]), dim=-1).values
    return top[:, 0] - top[:, -1]
