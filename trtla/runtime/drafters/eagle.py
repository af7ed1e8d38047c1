"""EAGLE-3 heads as a source of rows in candidate trees.

Every committed token's state makes a pair with the token after it. Before a step a head reads the
pairs that are new, and the last one gives the row of likely tokens behind the input token. Then it
reads likely tokens themselves, each with its own output in place of the target's state, as long as
another row pays. Those pairs are never kept: the target's states replace them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from trtla.runtime.drafters.head import HeadDraft, HeadDrafter, HeadDrafters
from trtla.runtime.models.heads.head_model import HeadFeed, HeadModel, HeadRows
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.tree.library import Unread

MOST_LEVELS = 8
"""Rows along a path, at most."""
WINDOW = 2048
"""Pairs that a head sees: those of public ones were trained on texts of this length."""
_CHUNK = 512
"""Most pairs of a text in a forward."""
_ALONE = 64
"""States that are fused as they come; fewer wait for those of other requests."""


class EagleDrafter(HeadDrafter):
    """The head's view of one request.

    Invariant before a draft: the pairs [first, first + cached) are in the cache, and the states of
    later ones wait.
    """

    heads: EagleDrafters

    def __init__(self, heads: EagleDrafters) -> None:
        super().__init__(heads)
        self.cached = self.first = 0
        """Pairs in the cache, and the text's first one that is seen."""
        self.waiting: list[ndarray] = []
        """States that are not fused yet, each [taps, tokens, the target's hidden size]."""
        self._fused: list[ndarray] = []
        self._end = 0
        """Tokens of the text whose states came."""
        self.chain: list[int] = []
        """Tokens that the head has read ahead of the text."""
        self.state: ndarray | None = None
        """The state of the next pair behind them; None: there are no rows."""

    def saw_hidden(self, first: int, states: ndarray) -> None:
        if first != self._end:  # states of kept blocks, or while the head rested, never come
            self.first, self.cached, self.waiting, self._fused = first, 0, [], []
        self._end = first + states.shape[1]
        self.waiting.append(states[self.heads.taps])
        if states.shape[1] > _ALONE:
            self.take(self.heads.model.fuse(self.fusing()))

    def fusing(self) -> ndarray:
        """Return the waiting states, [taps, tokens, hidden size]."""
        waiting, self.waiting = self.waiting, []
        return _joined(waiting, axis=1)

    def take(self, fused: ndarray) -> None:
        """Take the fused states of all that waited; those that no pair will see are dropped."""
        self._fused.append(fused)
        while sum(map(len, self._fused[1:])) >= WINDOW:
            self.first, self.cached = self.first + self.cached + len(self._fused.pop(0)), 0

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        super().observe(greedy, committed)
        self.heads.judge(self.chain, committed)
        self.chain, self.state = [], None

    def pairs(self) -> HeadFeed | None:
        """Return the next new pairs, as many as a forward takes; None: all are cached."""
        if not self._fused or self.sequence is None:
            return None
        states = _joined(self._fused)
        skipped = max(0, len(states) - WINDOW)
        if skipped:
            self.first, self.cached = self.first + self.cached + skipped, 0
        fed = states[skipped : skipped + _CHUNK]
        left = states[skipped + _CHUNK :]
        self._fused = [left] if len(left) else []
        moved = max(0, self.cached + len(fed) - WINDOW)
        self.first, self.cached = self.first + moved, self.cached - moved
        return self._feed(self._following(len(fed)), fed)

    def ahead(self, token: int) -> HeadFeed:
        """Return the pair of a likely token behind those that it has read."""
        assert self.state is not None
        return self._feed((token,), self.state[None])

    def read(self, feed: HeadFeed, state: ndarray) -> None:
        """Count pairs as cached that have been fed, and keep the state of the next."""
        self.cached += len(feed.ids)
        self.state = state.copy()

    def read_ahead(self, token: int, state: ndarray) -> None:
        self.chain.append(token)
        self.state = state.copy()

    def _feed(self, ids: Sequence[int], states: ndarray) -> HeadFeed:
        assert self.sequence is not None
        table = self.heads.cache.table(self.sequence.blocks)
        return HeadFeed(table, self.first, self.cached + len(self.chain), ids, states)

    def _following(self, count: int) -> Sequence[int]:
        """Return the tokens after those of the next pairs' states."""
        assert self.sequence is not None
        start, prompt, output = (
            self.first + self.cached + 1,
            self.sequence.prompt,
            self.sequence.output_ids,
        )
        if start >= len(prompt):
            return output[start - len(prompt) : start - len(prompt) + count]
        return [*prompt[start : start + count], *output[: max(0, start + count - len(prompt))]]


class EagleDrafters(HeadDrafters):
    """Makes the drafters of a head, and reads for all due requests in the same forwards.

    Args:
        taps: indexes of the head's layers among those that the target's forward taps.
    """

    def __init__(self, model: HeadModel, cache: KVCache, taps: Sequence[int]) -> None:
        super().__init__(MOST_LEVELS)
        self.model, self.cache, self.taps = model, cache, list(taps)

    def drafter(self) -> EagleDrafter:
        return EagleDrafter(self)

    def begin(self, due: Sequence[HeadDraft]) -> list[HeadDraft]:
        self._fuse([_eagle(draft) for draft in due])
        begun: dict[HeadDraft, tuple[ndarray, ndarray]] = {}
        while True:
            feeds = [(draft, feed) for draft in due if (feed := _eagle(draft).pairs())]
            if not feeds:
                break
            rows = self._forward([feed for _, feed in feeds])
            for index, (draft, feed) in enumerate(feeds):
                _eagle(draft).read(feed, rows.states[index])
                begun[draft] = rows.ids[index].copy(), rows.logs[index].copy()
        for draft, (ids, logs) in begun.items():
            draft.tree.add_head_row(-1, -1, ids, logs)
            draft.drafter.likely = int(ids[0])
        return [draft for draft in due if draft in begun]

    def extend(self, grown: Sequence[tuple[HeadDraft, Unread]]) -> None:
        feeds = [_eagle(draft).ahead(unread.token) for draft, unread in grown]
        rows = self._forward(feeds)
        for index, (draft, unread) in enumerate(grown):
            draft.tree.add_head_row(unread.row, unread.token, rows.ids[index], rows.logs[index])
            _eagle(draft).read_ahead(unread.token, rows.states[index])

    def _fuse(self, drafters: Sequence[EagleDrafter]) -> None:
        waiting = [drafter for drafter in drafters if drafter.waiting]
        if not waiting:
            return
        states = [drafter.fusing() for drafter in waiting]
        fused = self.model.fuse(_joined(states, axis=1))
        start = 0
        for drafter, part in zip(waiting, states, strict=True):
            drafter.take(fused[start : start + part.shape[1]])
            start += part.shape[1]

    def _forward(self, feeds: Sequence[HeadFeed]) -> HeadRows:
        self.totals.forwards += 1
        self.totals.pairs += sum([len(feed.ids) for feed in feeds])
        return self.model.forward(feeds, self.cache)


def _joined(parts: Sequence[ndarray], axis: int = 0) -> ndarray:
    """Concatenate arrays; a single one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)


def _eagle(draft: HeadDraft) -> EagleDrafter:
    assert isinstance(draft.drafter, EagleDrafter)
    return draft.drafter
