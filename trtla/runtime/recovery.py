"""What both executors do about interrupts: a record that nothing tears, and recovery from it.

A change begins by marking the state as torn and ends by taking the mark back. Who finds the mark at
the beginning of the next change makes everything anew from the record.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Generic

from trtla.runtime.executor import ExecutorStats, Output, Request
from trtla.runtime.in_flight import DecodedT, InFlight
from trtla.runtime.lifecycle import OpenExecutor
from trtla.runtime.limits import ExecutorLimits


class RecoveringExecutor(OpenExecutor, Generic[DecodedT]):
    """An executor whose requests survive an exception anywhere in `poll`.

    Args:
        limits: what requests must fit into.
        stats: its counters; those of tokens come from the record.
    """

    def __init__(self, limits: ExecutorLimits, stats: ExecutorStats) -> None:
        super().__init__(limits)
        self._stats = stats
        self._in_flight: InFlight[DecodedT] = InFlight()
        self._torn = False
        """A change has begun and not ended: nothing but the record is certain."""
        self._new: list[Output] = []
        """Outputs that the next `poll` reports."""
        self._taken: list[int] = []
        """Ended requests whose last output the last `poll` has reported."""

    @abstractmethod
    def _recover(self) -> None:
        """Make all anew from the record, and report all of it again."""

    def stats(self) -> ExecutorStats:
        """Counters since the executor was opened, as they are now."""
        return replace(self._stats, **self._in_flight.counts()._asdict())

    def resend(self) -> None:
        """Outputs of the last `poll` may be lost: the next one reports all of them again."""
        self._torn = True

    def _check_submitted(self, request: Request) -> None:
        """Refuse a request that does not fit or whose id is in use; ended ones free theirs."""
        if request.request_id in self._taken and not self._torn:
            self._forget_taken()
        self._check_new(request, self._in_flight.sequences)

    def _begin(self) -> None:
        """Begin a change: `_torn` is False again when it has ended as it should."""
        if self._torn:
            self._recover()
        else:
            self._forget_taken()
            self._torn = True

    def _forget_taken(self) -> None:
        """The last outputs have arrived: who came back for more had no exception in between."""
        if self._taken:
            self._in_flight = self._in_flight.without(self._taken)
            self._taken = []

    def _report(self) -> list[Output]:
        """The end of a `poll`: its outputs."""
        outputs, self._new = self._new, []
        self._taken = [o.request_id for o in outputs if o.finish_reason is not None]
        self._torn = False
        return outputs

    def _release(self) -> None:
        """Let go of the requests."""
        self._in_flight = self._in_flight.without(self._in_flight.sequences)
