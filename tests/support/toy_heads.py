"""Heads over toy targets, which check that they are fed each pair of the text once and in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray

from tests.support.toys import Scores
from trtla.runtime.models.cpu.llama import HostCache
from trtla.runtime.models.heads.head_model import ROW, HeadFeed, HeadModel, HeadRows, MedusaModel
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.sampling.draw import log_softmax

Row = Callable[[list[int]], list[float]]
"""A text -> logits of the token after it."""


class ToyHead(HeadModel):
    """A head whose rows are a function of the text that its pairs stand for.

    With the target's own scores it is an oracle.
    """

    taps = (0,)
    block_bytes = 1
    weight_bytes = 0

    def __init__(self, row: Row) -> None:
        self._row = row
        self.read: list[tuple[int, int]] = []
        """Of each forward: real pairs, and those of likely tokens."""
        self.guessed: list[tuple[int, int]] = []
        """Likely tokens that it has read, and their places in the text."""

    def new_cache(self, num_blocks: int) -> HostCache:
        return HostCache(1, 4, num_blocks, "float32")

    def fuse(self, states: ndarray) -> ndarray:
        return states[0]

    def forward(self, feeds: Sequence[HeadFeed], cache: KVCache) -> HeadRows:
        assert isinstance(cache, HostCache)
        pairs = cache.data[0, 0].view(np.float32)
        found, out, counts = [], [], [0, 0]
        for feed in feeds:
            end = feed.first + feed.cached
            for token, (before, place) in zip(feed.ids, feed.states, strict=True):
                ahead = bool(before < 0)
                counts[ahead] += 1
                assert place == end, "pairs follow each other, each at the place of its token"
                if ahead:
                    self.guessed.append((end + 1, token))
                    before = pairs[feed.table.order[end - 1]][1]
                pairs[feed.table.order[end]] = before, token, end, ahead
                end += 1
            text = self._text(pairs[list(feed.table.order[feed.first : end])], feed)
            found.append(self._row(text))
            out.append((-1.0, end))
        self.read.append((counts[0], counts[1]))
        return _rows(np.array(found), np.array(out, np.float32))

    def _text(self, pairs: ndarray, feed: HeadFeed) -> list[int]:
        numbers = pairs.astype(np.int64)
        assert numbers[:, 2].tolist() == [*range(feed.first, feed.first + len(pairs))]
        assert (numbers[1:, 0] == numbers[:-1, 1]).all(), "a pair's token is the next one's state"
        ahead = numbers[:, 3]
        assert (np.diff(ahead) >= 0).all(), "no pair of a likely token is kept"
        return [int(numbers[0, 0]), *numbers[:, 1].tolist()]


class ToyMedusa(MedusaModel):
    """Heads that know where the last token stands, and what comes at each place."""

    weight_bytes = 0

    def __init__(self, at: Callable[[int], list[float]], heads: int) -> None:
        self._at, self._heads = at, heads

    def rows(self, states: ndarray) -> tuple[ndarray, ndarray]:
        places = [int(place) + 2 + head for _, place in states for head in range(self._heads)]
        rows = _rows(np.array([self._at(place) for place in places]), states)
        shape = (len(states), self._heads, ROW)
        return rows.ids.reshape(shape), rows.logs.reshape(shape)


def _rows(logits: ndarray, states: ndarray) -> HeadRows:
    logs = log_softmax(logits.astype(np.float64))
    count = min(ROW, logs.shape[1])
    ids = np.full((len(logs), ROW), -1, np.int32)
    best = np.full((len(logs), ROW), -np.inf, np.float32)
    ids[:, :count] = np.argsort(-logs, axis=1, kind="stable")[:, :count]
    best[:, :count] = np.take_along_axis(logs, ids[:, :count], axis=1)
    return HeadRows(ids, best, states)


def shifted(scores: Scores, by: int) -> Row:
    """A head that is always wrong by so many tokens."""
    return lambda text: np.roll(scores(text), by).tolist()
