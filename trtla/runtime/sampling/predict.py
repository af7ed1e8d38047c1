"""Predictions of the target after a step's rows: from logits to tokens.

All feeds in few calls, or row by row where single rows are cheap and most are never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy import ndarray

from trtla.runtime.draft import TopRows
from trtla.runtime.grammar import allows
from trtla.runtime.sampling.changes import changed, changed_rows, penalised
from trtla.runtime.sampling.draw import argmax, draw_at, largest, log_softmax, log_weights
from trtla.runtime.sampling.logits import Logits, host_rows, on_device, on_host
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.sequence import Feed
from trtla.settings.sampling import DrawSettings, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor


class Draw(NamedTuple):
    """One row's draw."""

    row: int
    params: SamplingParams
    """Temperature above 0, and filters."""
    noise: float
    """A number in [0, 1), from seed and position."""


@dataclass(slots=True)
class Prediction:
    """The target's choices after a feed's rows, by node; NO_TOKEN where it has no answer."""

    greedy: Mapping[int, int]
    """The argmax; of a sampled request only where its drafter reads it."""
    draws: Mapping[int, int]
    logits: Logits
    """The logits of all feeds' rows; valid until the next forward."""
    start: int
    """The first of this feed's rows in them; the others follow in their order."""
    tops: TopRows | None = None
    """The most probable tokens after the nodes, if the drafter reads them."""


_FILTERED = SamplingParams(temperature=1.0, top_k=2, top_p=0.5)


class RowSampler(Protocol):
    """Chooses for one row at a time, if that costs no more than for all of them at once."""

    def most_probable(self, logits: ndarray, row: int) -> int:
        """The argmax of a row of [rows, vocab]; NO_TOKEN where its logits are not finite."""

    def draw(self, logits: ndarray, row: int, params: SamplingParams, noise: float) -> int:
        """A row's token for its noise in [0, 1), as `draw_at`."""

    def masked(self, logits: ndarray, row: int, mask: ndarray) -> ndarray:
        """A row with the tokens of a `GrammarState.mask` alone, [1, vocab]; good until the next
        call."""

    def top_rows(self, logits: ndarray, rows: Sequence[int], count: int) -> tuple[ndarray, ndarray]:
        """The most probable tokens of these rows of [rows, vocab], best first, int32, and the
        logarithms of their probabilities; the first is the argmax, or -1 where that is not sure.
        The next call may overwrite them.
        """


class StepSampler:
    """Chooses for all rows of a step at once, if a call costs more than most of its rows."""

    def choose(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[int]]:
        """The argmax of every row of [rows, vocab], and the token of each draw.

        NO_TOKEN where a row's logits are no answer. A row is drawn once at most, as by `draw_at`.
        """
        raise NotImplementedError

    def top_rows(self, logits: Tensor, rows: Sequence[int], count: int) -> tuple[ndarray, ndarray]:
        """Rank rows as `RowSampler.top_rows` does; the order of equal ones is any."""
        return _top_rows(host_rows(logits, rows), count)

    def warm_up(self, logits: Tensor) -> None:
        """Choose from rows like these with and without draws and filters, as compilers see it."""
        row = logits[:1].clone().zero_()
        for draws in ((), (Draw(0, _FILTERED, 0.5),)):
            self.choose(row, draws)
        self.top_rows(row, [0], 1)


class _LazyTokens(dict[int, int]):
    """Choices by node, made when they are read: few of a draft's rows ever are.

    Args:
        start: the feed's first row of the logits.
        drawn: tokens are drawn; else they are the most probable ones.
    """

    __slots__ = ("_by_row", "_drawn", "_feed", "_first", "_logits", "_next", "_start")

    def __init__(
        self, feed: Feed, logits: ndarray, start: int, by_row: RowSampler, drawn: bool
    ) -> None:
        self._feed, self._logits, self._start = feed, logits, start
        self._by_row, self._drawn = by_row, drawn
        self._first: dict[int, int] = {}
        """The most probable tokens of all, by node, where a grammar may forbid them."""
        self._next = feed.sequence.num_cached + 1  # committing the step changes it

    def __missing__(self, node: int) -> int:
        feed = self._feed
        row = self._start + (feed.rows.index(node) if node else 0)
        if feed.sequence.request.changes_rows:
            with penalised(self._logits, [(row, feed, node)]):
                token = self._choose_masked(node, row)
        else:
            token = self._choose(node, self._logits, row)
        self[node] = token
        return token

    def know(self, tops: TopRows) -> None:
        """Take the first tokens of these rows as the most probable ones, which they mostly are."""
        request = self._feed.sequence.request
        if not request.sampling.changes_rows:
            firsts = zip(self._feed.rows, tops.ids[:, 0].tolist(), strict=True)
            known = self if request.grammar is None else self._first
            known.update([pair for pair in firsts if pair[1] >= 0])

    def _choose_masked(self, node: int, row: int) -> int:
        mask = self._feed.mask(node)
        if mask is None:
            return self._choose(node, self._logits, row)
        first = self._first.get(node)
        if first is not None and allows(mask, first):
            return first
        return self._choose(node, self._by_row.masked(self._logits, row, mask), 0)

    def _choose(self, node: int, logits: ndarray, row: int) -> int:
        if not self._drawn:
            return self._by_row.most_probable(logits, row)
        params = self._feed.sequence.request.sampling
        noise = uniform(params.seed, self._next + self._feed.depth(node))
        return self._by_row.draw(logits, row, params, noise)


def predict(
    feeds: Sequence[Feed],
    logits: Logits,
    sampler: RowSampler | StepSampler | None = None,
    tops: Sequence[TopRows | None] = (),
) -> list[Prediction]:
    """Every feed's choices, from the logits of all their rows.

    Args:
        sampler: a `RowSampler` chooses when a choice is read, and the logits must stay until then.
            None: all rows at once, by `draw`.
        tops: `top_rows` of each feed whose drafter reads them.
    """
    if sampler is None or isinstance(sampler, StepSampler):
        with changed(logits, changed_rows(feeds)):
            predictions = _predict_all(feeds, logits, sampler)
    else:
        predictions, start, numbers = [], 0, on_host(logits)
        for feed in feeds:
            predictions.append(_predict_lazily(feed, numbers, start, sampler))
            start += len(feed.rows)
    for prediction, top in zip(predictions, tops, strict=False):
        prediction.tops = top
        if top is not None and isinstance(prediction.greedy, _LazyTokens):
            prediction.greedy.know(top)
    return predictions


def _predict_lazily(feed: Feed, logits: ndarray, start: int, by_row: RowSampler) -> Prediction:
    greedy = _LazyTokens(feed, logits, start, by_row, False)
    if feed.sequence.request.sampling.greedy:
        return Prediction(greedy, greedy, logits, start)
    return Prediction(greedy, _LazyTokens(feed, logits, start, by_row, True), logits, start)


def _predict_all(
    feeds: Sequence[Feed], logits: Logits, sampler: StepSampler | None
) -> list[Prediction]:
    draws = row_draws(feeds)
    if sampler is not None:
        greedy, tokens = sampler.choose(on_device(logits), draws)
    else:
        reads_greedy = any(f.sequence.request.sampling.greedy or f.tree.read for f in feeds)
        numbers = on_host(logits)
        greedy = argmax(numbers) if reads_greedy and len(numbers) else [0] * len(numbers)
        tokens = drawn(draws, numbers)
    chosen = list(greedy)
    for draw, token in zip(draws, tokens, strict=True):
        chosen[draw.row] = token
    predictions, start = [], 0
    for feed in feeds:
        rows, stop = feed.rows, start + len(feed.rows)
        best = dict(zip(rows, greedy[start:stop], strict=True))
        tokens_by_node = best if not draws else dict(zip(rows, chosen[start:stop], strict=True))
        predictions.append(Prediction(best, tokens_by_node, logits, start))
        start = stop
    return predictions


def row_draws(feeds: Sequence[Feed]) -> list[Draw]:
    """The draws of sampled requests, at the rows where one may be needed."""
    draws, start = [], 0
    for feed in feeds:
        params = feed.sequence.request.sampling
        if feed.rows and not params.greedy:
            positions = feed.positions()
            draws += [
                Draw(start + index, params, uniform(params.seed, positions[node] + 1))
                for index, node in enumerate(_drawn_nodes(feed))
            ]
        start += len(feed.rows)
    return draws


def drawn(draws: Sequence[Draw], logits: ndarray) -> list[int]:
    """The tokens of draws; those with the same filters together: one call costs less than many."""
    alike: dict[DrawSettings, list[int]] = {}
    for index, draw in enumerate(draws):
        alike.setdefault(draw.params.draw_settings, []).append(index)
    tokens = [0] * len(draws)
    for indices in alike.values():
        rows, noise = [draws[i].row for i in indices], [draws[i].noise for i in indices]
        chosen = logits if len(rows) == len(logits) else logits[rows]
        drawn_tokens = draw_at(chosen, draws[indices[0]].params, noise)
        for index, token in zip(indices, drawn_tokens, strict=True):
            tokens[index] = token
    return tokens


def _drawn_nodes(feed: Feed) -> Sequence[int]:
    """The input and the candidates; those to read come behind them in `rows`."""
    if feed.draft is None or feed.draft.drawn or len(feed.rows) == 1:
        return feed.rows
    return feed.rows[: 1 + len(feed.draft.candidates)]


def logits_after(feed: Feed, nodes: Sequence[int], prediction: Prediction) -> ndarray:
    """A copy of the rows after some of a feed's nodes, [nodes, vocab]."""
    rows = [prediction.start + feed.rows.index(node) for node in nodes]
    return host_rows(prediction.logits, rows)


def most_probable(feed: Feed, nodes: Sequence[int], prediction: Prediction) -> list[list[int]]:
    """The most probable tokens after each of these nodes, as many as the drafter ranks."""
    sampling, ranks = feed.sequence.request.sampling, feed.sequence.drafter.ranks
    return top_tokens(logits_after(feed, nodes, prediction), ranks, sampling)


def top_rows(
    feeds: Sequence[Feed], logits: Logits, sampler: RowSampler | StepSampler | None
) -> list[TopRows | None]:
    """Rank the most probable tokens after every node that has logits.

    Returns:
        None for feeds whose drafters do not read them; an empty list if no drafter does.
    """
    counts = [feed.sequence.drafter.top_rows for feed in feeds]
    if not any(counts):
        return []
    rows: list[int] = []
    start = 0
    for feed, count in zip(feeds, counts, strict=True):
        rows += range(start, start + len(feed.rows)) if count else ()
        start += len(feed.rows)
    if not rows:  # parts of prompts have none
        return [None] * len(feeds)
    ids, logs = ranked_rows(logits, rows, max(counts), sampler)
    tops: list[TopRows | None] = []
    start = 0
    for feed, count in zip(feeds, counts, strict=True):
        stop = start + (len(feed.rows) if count else 0)
        nodes = (0,) if feed.draft is None else feed.rows
        top = None
        if stop - start == len(ids):
            top = TopRows(nodes, ids, logs)
        elif stop > start:
            top = TopRows(nodes, ids[start:stop], logs[start:stop])
        tops.append(top)
        start = stop
    return tops


def ranked_rows(
    logits: Logits, rows: Sequence[int], count: int, sampler: RowSampler | StepSampler | None
) -> tuple[ndarray, ndarray]:
    """Rank rows as `RowSampler.top_rows` does, with any sampler."""
    if sampler is None:
        return _top_rows(host_rows(logits, rows), count)
    if isinstance(sampler, StepSampler):
        return sampler.top_rows(on_device(logits), rows, count)
    return sampler.top_rows(on_host(logits), rows, count)


def _top_rows(logits: ndarray, count: int) -> tuple[ndarray, ndarray]:
    ids, logs = np.full((len(logits), count), -1, np.int32), np.full((len(logits), count), -100.0)
    ranked, width = _ranked(logits, count), min(count, logits.shape[-1])
    ids[:, :width] = ranked
    logs[:, :width] = np.take_along_axis(log_softmax(logits), ranked, axis=-1)
    ids[~np.isfinite(logs)] = -1
    return ids, logs.astype(np.float32)


def _ranked(logits: ndarray, count: int) -> ndarray:
    """The most probable tokens of each row, int64 [rows, count], equal ones by their ids."""
    count = min(count, logits.shape[-1])
    firsts = [_first_of(row, count) for row in logits]
    return np.stack(firsts) if firsts else np.empty((0, count), np.int64)


def _first_of(row: ndarray, count: int) -> ndarray:
    ids = (row >= largest(row, count)[-1]).nonzero()[0]
    first: ndarray = ids[np.argsort(-row[ids], kind="stable")][:count]
    return first if len(first) == count else np.argsort(-row, kind="stable")[:count]  # NaN


@np.errstate(all="ignore")  # rows that are no answer hold NaN and infinities
def top_tokens(logits: ndarray, count: int, params: SamplingParams) -> list[list[int]]:
    """The most probable tokens of each row of [rows, vocab], those of probability 0 left out.

    Temperature 0 has no probabilities but 1: there, tokens are ranked by their logits alone.
    """
    tokens = _ranked(logits, min(count, params.top_k or count))
    ranked: list[list[int]] = tokens.tolist()
    if params.temperature == 0.0:
        return ranked
    if params.top_k:  # the other filters see these alone
        weights = log_weights(largest(logits, params.top_k), params)[:, : tokens.shape[1]]
    else:
        weights = np.take_along_axis(log_weights(logits, params), tokens, axis=-1)
    possible = np.exp(weights) > 0.0
    return [row[:size] for row, size in zip(ranked, possible.sum(axis=-1).tolist(), strict=True)]
