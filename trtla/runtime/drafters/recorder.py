"""Recording what a request's drafter drafted and what came of it, beside the decoding.

A recorder stands between executor and drafter and passes everything on unchanged, so the text is
the same with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, TopRows

if TYPE_CHECKING:
    from trtla.runtime.request import Request


@dataclass(frozen=True, slots=True)
class RecordedForward:
    """One forward of the target."""

    draft: Draft
    """Empty for the prefill."""
    observed: tuple[int, ...]
    """The target's tokens after each node of the draft's `read`."""
    committed: tuple[int, ...]
    """What it added to the output."""


class DraftRecorder(Drafter):
    """A drafter that does what another one does, and keeps every forward, the prefill first."""

    def __init__(self, inner: Drafter, request: Request) -> None:
        self.request = request
        self.forwards: list[RecordedForward] = []
        self._inner, self._draft = inner, NO_DRAFT

    @property
    def top_rows(self) -> int:  # type: ignore[override]
        """The other's."""
        return self._inner.top_rows

    @property
    def tree(self) -> Drafter | None:
        """The other's."""
        return self._inner.tree

    def propose(self) -> Draft:
        """The other's draft."""
        self._draft = self._inner.propose()
        return self._draft

    def skip(self) -> Draft:
        """The other's."""
        return self._inner.skip()

    def saw(self, path: Sequence[int], rows: TopRows) -> None:
        """For the other."""
        self._inner.saw(path, rows)

    def ranked(self, tops: Sequence[Sequence[int]]) -> None:
        """For the other."""
        self._inner.ranked(tops)

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """For the other; then the forward is over."""
        self._inner.observe(greedy, committed)
        self.forwards.append(RecordedForward(self._draft, tuple(greedy), tuple(committed)))
        self._draft = NO_DRAFT

    def close(self) -> None:
        """The request has ended."""
        self._inner.close()


RecorderT = TypeVar("RecorderT", bound=DraftRecorder)


class RecorderWatch(Generic[RecorderT]):
    """A `DrafterWatch` that records every request.

    Args:
        kind: the recorder's class.
    """

    def __init__(self, kind: Callable[[Drafter, Request], RecorderT]) -> None:
        self.recorders: list[RecorderT] = []
        """In the order of the requests."""
        self._kind = kind

    def __call__(self, inner: Drafter, request: Request) -> RecorderT:
        self.recorders.append(self._kind(inner, request))
        return self.recorders[-1]
