"""What the target predicts after a step's rows: from logits to tokens.

All feeds in few calls, or row by row where single rows are cheap and most are never asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trtla.runtime.draft import TopRows
from trtla.runtime.sampling.draw import argmax, draw_at, top2_margin
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.sequence import Feed
from trtla.settings.sampling import Filters, SamplingParams

_Rows = tuple[SamplingParams, list[int], list[float]]
"""Filters, packed rows drawn with them, and each row's noise."""


@dataclass(slots=True)
class Prediction:
    """What the target said after a feed's rows, by node; NO_TOKEN where it has no answer."""

    greedy: Mapping[int, int]
    """The argmax; of a sampled request only where its drafter reads it."""
    draws: Mapping[int, int]
    margins: Mapping[int, float]
    logits: Tensor
    """Of all feeds' rows; valid until the next forward."""
    start: int
    """The first of this feed's rows in them; the others follow in their order."""


class RowSampler(Protocol):
    """Chooses for one row at a time, where that costs no more than for all of them at once."""

    def most_probable(self, logits: Tensor, row: int) -> int:
        """The argmax of a row of [rows, vocab]; NO_TOKEN where its logits are not finite."""

    def draw(self, logits: Tensor, row: int, params: SamplingParams, noise: float) -> int:
        """A row's token for its noise in [0, 1), as `draw_at`."""

    def top_rows(self, logits: Tensor, start: int, top: TopRows) -> None:
        """Fill in the most probable tokens of the rows of [rows, vocab] from `start` on."""


class _LazyTokens(dict[int, int]):
    """Choices by node, made when they are asked for: few of a draft's rows ever are."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose = choose

    def __missing__(self, node: int) -> int:
        token = self[node] = self._choose(node)
        return token


def predict(
    feeds: Sequence[Feed], logits: Tensor, by_row: RowSampler | None = None
) -> list[Prediction]:
    """Every feed's choices, from the logits of all their rows.

    Args:
        by_row: chooses row by row when asked; the logits must stay until then. None: all at once.
    """
    if by_row is None:
        return _predict_all(feeds, logits)
    predictions, start = [], 0
    for feed in feeds:
        predictions.append(_predict_asked(feed, logits, start, by_row))
        start += len(feed.rows)
    return predictions


def _predict_asked(feed: Feed, logits: Tensor, start: int, by_row: RowSampler) -> Prediction:
    rows = dict(zip(feed.rows, range(start, start + len(feed.rows)), strict=True))
    request = feed.sequence.request
    margins: dict[int, float] = {}
    if request.margins and rows:
        own = top2_margin(logits[start : start + len(rows)]).tolist()
        margins = dict(zip(feed.rows, own, strict=True))
    greedy = _LazyTokens(lambda node: by_row.most_probable(logits, rows[node]))
    params = request.sampling
    if params.greedy:
        return Prediction(greedy, greedy, margins, logits, start)
    places = feed.positions()

    def drawn(node: int) -> int:
        return by_row.draw(logits, rows[node], params, uniform(params.seed, places[node] + 1))

    return Prediction(greedy, _LazyTokens(drawn), margins, logits, start)


def _predict_all(feeds: Sequence[Feed], logits: Tensor) -> list[Prediction]:
    greedy = [0] * len(logits)
    if greedy and any(map(_reads_argmax, feeds)):
        greedy = argmax(logits).tolist()
    drawn, margins = _drawn(feeds, logits, greedy), list[float]()
    if any(feed.sequence.request.margins for feed in feeds):
        margins = top2_margin(logits).tolist()
    predictions, start = [], 0
    for feed in feeds:
        rows, stop = feed.rows, start + len(feed.rows)
        said = dict(zip(rows, greedy[start:stop], strict=True))
        draws = said if drawn is greedy else dict(zip(rows, drawn[start:stop], strict=True))
        own = margins[start:stop] if feed.sequence.request.margins else ()
        margin = dict(zip(rows, own, strict=False))
        predictions.append(Prediction(said, draws, margin, logits, start))
        start = stop
    return predictions


def _reads_argmax(feed: Feed) -> bool:
    return feed.sequence.request.sampling.greedy or bool(feed.tree.read)


def _drawn(feeds: Sequence[Feed], logits: Tensor, greedy: list[int]) -> list[int]:
    """Each row's own token: the argmax of greedy requests, else a draw where one is wanted."""
    alike = _rows_alike(feeds)
    if not alike:
        return greedy
    tokens = list(greedy)
    for params, rows, noise in alike:
        chosen = logits if len(rows) == len(logits) else logits[rows]
        for row, token in zip(rows, draw_at(chosen, params, noise).tolist(), strict=True):
            tokens[row] = token
    return tokens


def _rows_alike(feeds: Sequence[Feed]) -> list[_Rows]:
    """The rows to draw, those with the same filters together: one call costs less than many."""
    alike: dict[Filters, _Rows] = {}
    start = 0
    for feed in feeds:
        params = feed.sequence.request.sampling
        if feed.rows and not params.greedy:
            _, rows, noise = alike.setdefault(params.filters, (params, [], []))
            places, nodes = feed.positions(), _drawn_nodes(feed)
            rows += range(start, start + len(nodes))
            noise += [uniform(params.seed, places[node] + 1) for node in nodes]
        start += len(feed.rows)
    return list(alike.values())


def _drawn_nodes(feed: Feed) -> Sequence[int]:
    """The input and the candidates; those to read come behind them in `rows`."""
    if feed.draft is None or feed.draft.drawn or len(feed.rows) == 1:
        return feed.rows
    return feed.rows[: 1 + len(feed.draft.candidates)]


def most_probable(feed: Feed, nodes: Sequence[int], said: Prediction) -> list[list[int]]:
    """The `top` tokens that a feed's draft asks for after each of these nodes, best first."""
    places = [said.start + feed.rows.index(node) for node in nodes]
    return top_tokens(said.logits[places], feed.tree.top, feed.sequence.request.sampling)


def seen_rows(
    feed: Feed, path: Sequence[int], said: Prediction, by_row: RowSampler | None
) -> TopRows:
    """What the target held for likely after every node of a draft whose logits there are.

    Args:
        path: the nodes that were accepted.
    """
    nodes = (0,) if feed.draft is None else feed.rows
    last = nodes.index(path[-1]) if path else 0
    count = feed.sequence.drafter.top_rows
    if by_row is not None:
        shape = (len(nodes), count)
        top = TopRows(nodes, torch.empty(shape, dtype=torch.int32), torch.empty(shape), last)
        by_row.top_rows(said.logits, said.start, top)
        return top
    logits = said.logits[said.start : said.start + len(nodes)].float()
    values, tokens = logits.topk(min(count, logits.shape[-1]), dim=-1)
    values -= logits.logsumexp(dim=-1, keepdim=True)
    tokens.masked_fill_(~values.isfinite(), -1)
    pad = functools.partial(torch.nn.functional.pad, pad=(0, count - values.shape[-1]))
    return TopRows(nodes, pad(tokens, value=-1).int().cpu(), pad(values, value=-100.0).cpu(), last)


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

    Not `sampling.probabilities`, which sorts whole rows: no draw depends on these.
    """
    if 0 < params.top_k < logits.shape[-1]:
        logits = logits.topk(params.top_k, dim=-1).values
    largest = values[:, :1]
    total = ((logits - largest) / params.temperature).logsumexp(dim=-1, keepdim=True)
    return ((values - largest) / params.temperature - total).double().exp()
