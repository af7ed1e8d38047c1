"""Acceptance of drafted tokens: by the target's own draws (Rule A), or by rejection (Rule B)."""

from __future__ import annotations

from collections.abc import Mapping

from numpy import ndarray

from trtla.runtime.draft import Draft
from trtla.runtime.sampling.changes import changed, changed_rows
from trtla.runtime.sampling.draw import draw_weighted, probabilities
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.sampling.predict import Prediction
from trtla.runtime.sequence import Feed

Path = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens to emit, the accepted drafts and then the target's after them; and the nodes of these
drafts, parents first, one fewer than tokens."""


def accept(draft: Draft, draws: Mapping[int, int]) -> Path:
    """The longest drafted path that matches the target's draws, and the draw that ends it.

    Args:
        draft: the fed tree.
        draws: the target's token after node 0 and after every candidate node.
    """
    children = draft.children()
    tokens = [draws[0]]
    frontier = [0]
    while True:
        matching = [child for node in frontier for child in children.get((node, tokens[-1]), ())]
        if not matching:
            return tuple(tokens), draft.path(frontier[0])
        frontier = matching
        tokens.append(draws[frontier[0]])


_OWN_SEEDS = 1 << 63  # above every request's seed: drafts are drawn with the noise of those
_RESIDUAL = 1 << 40  # above every position


def accept_by_rejection(feed: Feed, prediction: Prediction, draft_probs: ndarray) -> Path:
    """Keep drafted tokens, first to last, then add one token of the target.

    Args:
        feed: the input token and a chain below it, with logits of all rows.
        prediction: the target's, after each of them.
        draft_probs: the distribution of each drafted token, [drafted, vocab].
    """
    params, positions = feed.sequence.request.sampling, feed.positions()
    drafted = feed.tree.tokens
    logits = on_host(prediction.logits[prediction.start : prediction.start + len(feed.rows)])
    with changed(logits, changed_rows([feed])):
        probs = probabilities(logits[: len(drafted)], params)
    for index, (token, p, q) in enumerate(zip(drafted, probs, draft_probs, strict=True)):
        seed, position = params.seed + _OWN_SEEDS, positions[index] + 1
        if not keeps(uniform(seed, position), p[token].item(), q[token].item()):
            noise = uniform(seed, position + _RESIDUAL)
            replacement = draw_weighted(residual(p, q), noise)
            return (*drafted[:index], replacement), tuple(range(1, index + 1))
    last = prediction.draws[len(drafted)]
    return (*drafted, last), tuple(range(1, len(drafted) + 1))


def keeps(noise: float, p: float, q: float) -> bool:
    """Return True, with probability min(1, p / q), if the token stays: p target's, q draft's.

    A token with p = 0 is never kept, not even if the noise or q is 0.
    """
    return noise * q < p


def residual(p: ndarray, q: ndarray) -> ndarray:
    """Weights of the token in place of one that was not kept: max(0, p - q), or p where that is 0.

    It is all 0 only where p and q are equal but for rounding.
    """
    weights: ndarray = (p - q).clip(0.0)
    return weights if weights.any() else p
