"""Drawing tokens with noise that depends only on (seed, absolute position).

Every token has its own Gumbel noise at a position, and the largest sum of noise and log probability
wins: the filtered distribution exactly. Rows at the same position share the noise: plain decoding
and every drafter draw the same token, and distributions that are alike mostly draw the same one,
which a window of drawn cells lives on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sampling.noise import FIRST, GOLDEN, ODD, SECOND, uniform
from trtla.settings.sampling import SamplingParams

# As signed integers: tensors have no others.
_GOLDEN, _FIRST, _SECOND, _ODD = (number - (1 << 64) for number in (GOLDEN, FIRST, SECOND, ODD))

_MOST_SORTED = 1024
"""Most probable tokens of a row that hold top_p of its mass nearly always."""


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """What `draw` draws from: temperature, top-k, top-p, then min-p; float64 [rows, vocab]."""
    return _log_weights(logits, params).softmax(dim=-1)


def _log_weights(logits: Tensor, params: SamplingParams) -> Tensor:
    """Logarithms of `probabilities`, each row up to a constant."""
    kept = _top_k(logits.double(), params.top_k)
    # Relative to the largest, so that a temperature near 0 gives 0 and -inf, not inf.
    relative = (kept - kept.max(dim=-1, keepdim=True).values).div_(params.temperature)
    if params.top_p < 1.0:
        relative.masked_fill_(~_nucleus(kept, relative, params), float("-inf"))
    if params.min_p > 0.0:
        relative.masked_fill_(relative < math.log(params.min_p), float("-inf"))
    return relative


def _top_k(logits: Tensor, top_k: int) -> Tensor:
    if not 0 < top_k < logits.shape[-1]:
        return logits
    kth = logits.topk(top_k, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < kth, float("-inf"))


def _nucleus(
    logits: Tensor, relative: Tensor, params: SamplingParams, most: int = _MOST_SORTED
) -> Tensor:
    """Which tokens are in the smallest set of most probable ones whose mass reaches top_p.

    They are ordered by their logits, since a high temperature makes several equally probable, and
    equal logits by their ids. Rows whose `most` largest do not reach it are sorted whole.
    """
    vocab = logits.shape[-1]
    values = logits.topk(min(most, vocab), dim=-1).values
    mass = ((values - values[:, :1]) / params.temperature).exp_().cumsum(dim=-1)
    # Not `sum`: the order of its additions, and so its last bit, may depend on the number of rows.
    total = relative.exp().cumsum(dim=-1)[:, -1:]
    counts = 1 + (mass[:, :-1] / total < params.top_p).sum(dim=-1, keepdim=True)
    edge = values.gather(-1, counts - 1)
    larger, equal = logits > edge, logits == edge
    inside = larger | (equal & (equal.cumsum(dim=-1) <= counts - larger.sum(-1, keepdim=True)))
    wide = (counts[:, 0] == values.shape[-1]).nonzero()[:, 0] if most < vocab else counts[:0, 0]
    if len(wide):
        inside[wide] = _nucleus(logits[wide], relative[wide], params, vocab)
    return inside


def argmax(logits: Tensor) -> Tensor:
    """The most probable token of each row of [rows, vocab], or NO_TOKEN; int64 [rows]."""
    largest, places = logits.max(dim=-1)  # a maximum is NaN where any number is
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
    return (value >> count) & ((1 << (64 - count)) - 1)


def top2_margin(logits: Tensor) -> Tensor:
    """Difference of the two largest logits of each row, [rows]."""
    top = logits.topk(min(2, logits.shape[-1]), dim=-1).values
    return top[:, 0] - top[:, -1]
