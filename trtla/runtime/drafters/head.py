"""Trained heads as sources of rows in candidate trees: what all kinds have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from trtla.runtime.draft import NO_DRAFT, Draft, Drafter
from trtla.runtime.sequence import Sequence as Sequence_
from trtla.runtime.stats import HeadTotals
from trtla.runtime.tree.library import Tree, Unread

_FIRST_GAIN, _MEMORY = 0.6, 1.0 / 32.0  # of a row: accepted tokens, where all above it is right


class HeadDrafter(Drafter):
    """A head's view of one request: it adds rows to the request's tree."""

    def __init__(self, heads: HeadDrafters) -> None:
        self.heads = heads
        self.sequence: Sequence_ | None = None
        """The request in the executor, set when it joins."""
        self.likely: int | None = None
        """The most likely token by the row behind the input token; None: there is no row."""
        self.unknown = 1.0
        """The chance that no other source knew the token behind it."""
        self.was_right = False
        """The most likely token by the last such row came."""

    @property
    def wants_states(self) -> bool:  # type: ignore[override]
        return self.heads.active

    def propose(self) -> Draft:
        return NO_DRAFT

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        if self.likely is not None and committed:
            self.was_right = committed[0] == self.likely
            self.heads.totals.hits += self.was_right
            self.likely = None


class HeadDraft(NamedTuple):
    """A request that a head drafts for, and its tree."""

    drafter: HeadDrafter
    tree: Tree


class HeadDrafters(ABC):
    """Makes the drafters of a head, and reads for all due requests in the same forwards."""

    def __init__(self, levels: int = 0) -> None:
        self.totals = HeadTotals()
        self.active = True
        """The head drafts, so that states are wanted."""
        self.gains = [_FIRST_GAIN] * levels
        """Accepted tokens that each further forward's row brings where all above it is right."""

    @abstractmethod
    def drafter(self) -> HeadDrafter:
        """Return the drafter of a request."""

    @abstractmethod
    def begin(self, due: Sequence[HeadDraft]) -> list[HeadDraft]:
        """Read new states and add first rows to trees; return the requests that have one."""

    def extend(self, grown: Sequence[tuple[HeadDraft, Unread]]) -> None:
        """Read a likely token of each request, and add the row behind it; for each of `gains`."""
        raise NotImplementedError

    def judge(self, chain: Sequence[int], committed: Sequence[int]) -> None:
        """Learn what further rows bring, from the tokens that were read and those that came."""
        for level, token in enumerate(chain):
            if level + 1 >= len(committed) or committed[level] != token:
                return
            hit = level + 2 < len(committed)
            self.gains[level] += (hit - self.gains[level]) * _MEMORY
