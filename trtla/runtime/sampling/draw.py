"""Drawing tokens with noise that depends only on (seed, absolute position).

Every token has its own Gumbel noise at a position, and the largest sum of noise and log probability
wins: the filtered distribution exactly. Rows at the same position share the noise: plain decoding
and every drafter draw the same token, and distributions that are alike mostly draw the same one,
which a window of drawn cells lives on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sampling.noise import FIRST, GOLDEN, ODD, SECOND, uniform
from trtla.settings.sampling import SamplingParams

_MOST_SORTED = 1024
"""Most probable tokens of a row that hold top_p of its mass nearly always."""
_quiet = np.errstate(all="ignore")  # rows that are no answer hold NaN and infinities


@_quiet
def log_softmax(rows: ndarray) -> ndarray:
    """Logarithms of the probabilities of [rows, vocab], in their type."""
    relative = rows - rows.max(axis=-1, keepdims=True)
    logs: ndarray = relative - np.log(np.exp(relative).sum(axis=-1, keepdims=True))
    return logs


@_quiet
def probabilities(logits: ndarray, params: SamplingParams) -> ndarray:
    """Apply temperature, top-k, top-p, then min-p; returns float64 [rows, vocab]."""
    weights = np.exp(log_weights(logits, params))
    result: ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return result


def log_weights(logits: ndarray, params: SamplingParams) -> ndarray:
    """Logarithms of `probabilities`, each row up to a constant."""
    remaining = _top_k(logits.astype(np.float64), params.top_k)
    # Relative to the largest, so that a temperature near 0 gives 0 and -inf, not inf.
    relative: ndarray = (remaining - remaining.max(axis=-1, keepdims=True)) / params.temperature
    if params.top_p < 1.0:
        relative[~_nucleus(remaining, relative, params)] = -math.inf
    if params.min_p > 0.0:
        relative[relative < math.log(params.min_p)] = -math.inf
    return relative


def _top_k(logits: ndarray, top_k: int) -> ndarray:
    if not 0 < top_k < logits.shape[-1]:
        return logits
    return np.where(logits < largest(logits, top_k)[:, -1:], -math.inf, logits)


def largest(rows: ndarray, count: int) -> ndarray:
    """The `count` largest numbers of each row, or all if there are fewer, the largest first."""
    count = min(count, rows.shape[-1])
    top = np.partition(rows, rows.shape[-1] - count, axis=-1)[..., rows.shape[-1] - count :]
    return np.sort(top, axis=-1)[..., ::-1]


def _nucleus(
    logits: ndarray, relative: ndarray, params: SamplingParams, most: int = _MOST_SORTED
) -> ndarray:
    """Mark the tokens in the smallest set of most probable ones whose mass reaches top_p.

    They are ordered by their logits, since a high temperature makes several equally probable, and
    equal logits by their ids. Rows whose `most` largest do not reach it are sorted whole.
    """
    vocab, values = logits.shape[-1], largest(logits, most)
    mass = np.exp((values - values[:, :1]) / params.temperature).cumsum(axis=-1)
    total = np.exp(relative).cumsum(axis=-1)[:, -1:]  # in the order in which `mass` adds
    counts = 1 + (mass[:, :-1] / total < params.top_p).sum(axis=-1, keepdims=True)
    edge = np.take_along_axis(values, counts - 1, axis=-1)
    larger, equal = logits > edge, logits == edge
    room = counts - larger.sum(axis=-1, keepdims=True)
    inside: ndarray = larger | (equal & (equal.cumsum(axis=-1) <= room))
    wide = (counts[:, 0] == values.shape[-1]).nonzero()[0] if most < vocab else ()
    if len(wide):
        inside[wide] = _nucleus(logits[wide], relative[wide], params, vocab)
    return inside


def argmax(logits: ndarray) -> list[int]:
    """The most probable token of each row of [rows, vocab], or NO_TOKEN."""
    best = logits.argmax(axis=-1)  # the first NaN, if there is any
    values = np.take_along_axis(logits, best[:, None], axis=-1)[:, 0]
    tokens: list[int] = np.where(np.isfinite(values), best, NO_TOKEN).tolist()
    return tokens


def draw(logits: ndarray, params: SamplingParams, positions: Sequence[int]) -> list[int]:
    """One token per row.

    Args:
        logits: [rows, vocab].
        params: temperature above 0, filters and seed, the same for all rows.
        positions: absolute position of each row's drawn token.

    Returns:
        Token ids; a token of probability 0 is never drawn. NO_TOKEN where a row's logits are no
        answer.
    """
    return draw_at(logits, params, [uniform(params.seed, position) for position in positions])


@_quiet
def draw_at(logits: ndarray, params: SamplingParams, noise: Sequence[float]) -> list[int]:
    """Draw as `draw` does, with each row's noise in [0, 1): rows of several seeds in one call.

    A row's token does not depend on the rows beside it.
    """
    index = {number: i for i, number in enumerate(dict.fromkeys(noise))}
    gumbel = _gumbel(list(index), logits.shape[-1])
    return argmax(log_weights(logits, params) + gumbel[[index[number] for number in noise]])


@_quiet
def draw_weighted(weights: ndarray, noise: float) -> int:
    """Draw as `draw_at` does, from weights [vocab] of any sum above 0."""
    scores = np.log(weights.astype(np.float64)) + _gumbel([noise], len(weights))
    return argmax(scores)[0]


def _gumbel(noise: Sequence[float], vocab: int) -> ndarray:
    """Standard Gumbel noise of every token, from a position's noise and the id; [noise, vocab]."""
    keys = np.array([int(number * 2.0**53) for number in noise], np.uint64)[:, None]
    mixed = keys * np.uint64(ODD) + np.arange(vocab, dtype=np.uint64) * np.uint64(GOLDEN)
    for shift, factor in ((30, FIRST), (27, SECOND)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    bits = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(12)
    gumbel: ndarray = -np.log(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-52))
    return gumbel


def top2_margin(logits: ndarray) -> list[float]:
    """Difference of the two largest logits of each row."""
    top = largest(logits, 2)
    margins: list[float] = (top[:, 0] - top[:, -1]).tolist()
    return margins
