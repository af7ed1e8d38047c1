"""Rejection sampling of a drafted chain (Rule B): the target's law, with other draws.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (ICML 2023). A draft
is kept more often than where it has to equal the target's own draw; in exchange the text of a seed
is not plain decoding's, only its distribution is. Greedy requests have no use for it.
"""

from __future__ import annotations

from torch import Tensor

from trtla.runtime.batch import Feed
from trtla.runtime.prediction import Prediction
from trtla.runtime.sampling import draw_weighted, probabilities, uniform
from trtla.runtime.verify import Accepted

_OWN_SEEDS = 1 << 63  # above every request's seed: drafts are drawn with the noise of those
_RESIDUAL = 1 << 40  # above every position


def accept_by_rejection(feed: Feed, prediction: Prediction, laws: Tensor) -> Accepted:
    """Keep drafted tokens, first to last, then add one token of the target.

    Args:
        feed: the input token and a chain below it, all rows wanted.
        prediction: what the target said after each.
        laws: what each drafted token was drawn from, [drafted, vocab].
    """
    params, places = feed.sequence.request.sampling, feed.positions()
    drafted = feed.tree.tokens
    rows = prediction.logits[prediction.start :][: len(drafted)]
    for place, (token, p, q) in enumerate(
        zip(drafted, probabilities(rows, params), laws.to(rows.device), strict=True)
    ):
        seed, position = params.seed + _OWN_SEEDS, places[place] + 1
        if not keeps(uniform(seed, position), p[token].item(), q[token].item()):
            noise = uniform(seed, position + _RESIDUAL)
            other = int(draw_weighted(residual(p, q)[None], [noise]))
            return Accepted((*drafted[:place], other), tuple(range(1, place + 1)))
    last = prediction.draws[len(drafted)]
    return Accepted((*drafted, last), tuple(range(1, len(drafted) + 1)))


def keeps(noise: float, p: float, q: float) -> bool:
    """Whether a token with probabilities p of the target, q of the draft is kept: min(1, p / q).

    A token with p = 0 never is, not even where the noise or q is 0.
    """
    return noise * q < p


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Weights of the token in place of one that was not kept: max(0, p - q), or p where that is 0.

    It is all 0 only where p and q are equal but for rounding.
    """
    rest = (p - q).clamp_(min=0.0)
    return rest if rest.any() else p
