"""The target's most probable tokens at a few rows, for drafters that learn from them.

It knows logits and a request's filters; what the tokens are for it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trtla.runtime.batch import Feed
from trtla.runtime.executor import SamplingParams
from trtla.runtime.prediction import Prediction


def most_probable(feed: Feed, nodes: Sequence[int], said: Prediction) -> list[list[int]]:
    """The `top` tokens that a feed's draft asks for after each of these nodes, best first."""
    places = [said.start + feed.rows.index(node) for node in nodes]
    return top_tokens(said.logits[places], feed.tree.top, feed.sequence.request.sampling)


def top_tokens(logits: Tensor, count: int, params: SamplingParams) -> list[list[int]]:
    """The most probable tokens of each row of [rows, vocab], those of probability 0 left out.

    Temperature 0 has no probabilities but 1: there, tokens are ranked by their logits alone.
    """
    most = min(count, params.top_k or count, logits.shape[-1])
    values, tokens = logits.topk(most, dim=-1)
    ranked: list[list[int]] = tokens.tolist()
    if params.temperature == 0.0:
        return ranked
    shares = _shares(values, logits, params)
    kept = (shares > 0.0) & (shares.cumsum(dim=-1) - shares < params.top_p)
    return [row[:size] for row, size in zip(ranked, kept.sum(dim=-1).tolist(), strict=True)]


def _shares(values: Tensor, logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities after temperature and top-k; `values` are the rows' largest logits.

    Not `sampling.probabilities`, which sorts whole rows: no draw hangs on these.
    """
    if 0 < params.top_k < logits.shape[-1]:
        logits = logits.topk(params.top_k, dim=-1).values
    largest = values[:, :1]
    total = ((logits - largest) / params.temperature).logsumexp(dim=-1, keepdim=True)
    return ((values - largest) / params.temperature - total).double().exp()
