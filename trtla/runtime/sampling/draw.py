"""Drawing tokens with noise that depends only on (seed, absolute position).

Every token has its own Gumbel noise at a position, and the largest sum of noise and log probability
wins: the filtered distribution exactly. Rows at the same position share the noise: plain decoding
and every drafter draw the same token, and distributions that are alike mostly draw the same one,
which a window of drawn cells lives on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sampling.noise import FIRST, GOLDEN, ODD, SECOND, uniform
from trtla.settings.sampling import SamplingParams

# As signed integers: tensors have no others.
_GOLDEN, _FIRST, _SECOND, _ODD = (number - (1 << 64) for number in (GOLDEN, FIRST, SECOND, ODD))


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """What `draw` draws from: temperature, then top-k, then top-p; float64 [rows, vocab]."""
    kept = _top_k(logits.double(), params.top_k)
    if params.top_p < 1.0:
        return _nucleus(kept, params.temperature, params.top_p)
    # Relative to the largest, so that a temperature near 0 gives 0 and -inf, not inf.
    relative = kept - kept.max(dim=-1, keepdim=True).values
    return relative.div_(params.temperature).softmax(dim=-1)


def _top_k(logits: Tensor, top_k: int) -> Tensor:
    if not 0 < top_k < logits.shape[-1]:
        return logits
    kth = logits.topk(top_k, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < kth, float("-inf"))


def _nucleus(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """Probabilities of the smallest set of most probable tokens whose mass reaches top_p.

    They are ordered by their logits: a high temperature makes several equally probable.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    weights = (ordered - ordered[:, :1]).div_(temperature).exp_()
    mass = weights.cumsum(dim=-1)
    weights[:, 1:].masked_fill_(mass[:, :-1] / mass[:, -1:] >= top_p, 0.0)
    kept = torch.zeros_like(logits).scatter_(-1, order, weights)
    # Not `sum`: the order of its additions, and so its last bit, may depend on the number of rows.
    return kept / kept.cumsum(dim=-1)[:, -1:]


def argmax(logits: Tensor) -> Tensor:
    """The most probable token of each row of [rows, vocab], or NO_TOKEN; int64 [rows]."""
    return _place_of(*logits.max(dim=-1))


def _place_of(largest: Tensor, places: Tensor) -> Tensor:
    """Places of finite maxima; a maximum is NaN where any number is."""
    return torch.where(largest.abs() < float("inf"), places, NO_TOKEN)


def draw(logits: Tensor, params: SamplingParams, positions: Sequence[int]) -> Tensor:
    """One token per row.

    Args:
        logits: [rows, vocab].
        params: temperature above 0, filters and seed, the same for all rows.
        positions: absolute position of each row's drawn token.

    Returns:
        Token ids, int64 [rows]; a token of probability 0 is never drawn. NO_TOKEN where a row's
        logits are no answer.
    """
    return draw_at(logits, params, [uniform(params.seed, position) for position in positions])


def draw_at(logits: Tensor, params: SamplingParams, noise: Sequence[float]) -> Tensor:
    """As `draw`, with each row's noise in [0, 1) given: rows of several seeds in one call.

    A row's token does not depend on the rows beside it.
    """
    places = {number: place for place, number in enumerate(dict.fromkeys(noise))}
    gumbel = _gumbel(list(places), logits)
    scores = _log_weights(logits, params) + gumbel[[places[number] for number in noise]]
    return argmax(scores)


def draw_weighted(weights: Tensor, noise: Sequence[float]) -> Tensor:
    """As `draw_at`, from weights [rows, vocab] of any sum above 0."""
    return argmax(weights.double().log() + _gumbel(noise, weights))


def _log_weights(logits: Tensor, params: SamplingParams) -> Tensor:
    """Logarithms of `probabilities`, each row up to a constant."""
    if params.top_p < 1.0:
        return probabilities(logits, params).log()
    kept = _top_k(logits.double(), params.top_k)
    return (kept - kept.max(dim=-1, keepdim=True).values) / params.temperature


def _gumbel(noise: Sequence[float], logits: Tensor) -> Tensor:
    """Standard Gumbel noise of every token, from a position's noise and the id; [noise, vocab]."""
    keys = torch.tensor([int(number * 2.0**53) for number in noise], device=logits.device)
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    mixed = keys[:, None] * _ODD + tokens * _GOLDEN
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    bits = _shifted(mixed ^ _shifted(mixed, 31), 12)
    return -torch.log(-torch.log((bits.double() + 0.5) * 2.0**-52))


def _shifted(value: Tensor, count: int) -> Tensor:
    """A shift to the right that brings in zeros."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def top2_margin(logits: Tensor) -> Tensor:
    """Difference of the two largest logits of each row, [rows]."""
    top = logits.topk(min(2, logits.shape[-1]), dim=-1).values
    return top[:, 0] - top[:, -1]
