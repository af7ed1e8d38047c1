"""Outputs on their way from a model's thread to a reader, which is woken as rarely as it can be.

Where a forward computes on all cores, a thread that wakes for each output delays it: a small model
loses a tenth of its speed. So a reader that has just read looks again on its own after the time of
a picture on a screen; before that only the beginning and the end of a text wake it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from threading import Event as Flag

from trtla.llm.engine_thread import Event


class Coalescer:
    """Decides which events wake a reader.

    Args:
        seconds: after which the reader looks again on its own; 0: all events wake it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def wakes(self, events: Sequence[Event]) -> bool:
        """Return True if these events, which the reader can see already, have to wake it."""
        return time.monotonic() >= self._until or any(map(_is_urgent, events))

    def begin(self) -> None:
        """Note that the reader begins to look: what it may miss wakes it."""
        self._until = 0.0

    def end(self) -> float:
        """Note that the reader has looked and found something; return the seconds after which it
        must look again, 0 if it is woken."""
        self._until = time.monotonic() + self._seconds if self._seconds else 0.0
        return self._seconds


def _is_urgent(event: Event) -> bool:
    _, output = event
    return isinstance(output, BaseException) or not output.start or output.finish_reason is not None


class Inbox:
    """Events for a thread that waits for them; arguments as of `Coalescer`."""

    def __init__(self, seconds: float) -> None:
        self._coalescer = Coalescer(seconds)
        self._arrived: deque[Sequence[Event]] = deque()
        self._news = Flag()
        self._wait_s = 0.0

    def put(self, events: Sequence[Event]) -> None:
        self._arrived.append(events)
        if self._coalescer.wakes(events):
            self._news.set()

    def take(self) -> list[Event]:
        """Wait for events, and return all that have arrived."""
        if self._wait_s:
            self._news.wait(self._wait_s)
        self._coalescer.begin()
        while not self._arrived:
            self._news.wait()
            self._news.clear()
        self._news.clear()
        events = taken(self._arrived)
        self._wait_s = self._coalescer.end()
        return events


def taken(arrived: deque[Sequence[Event]]) -> list[Event]:
    """Take all events out of a queue that another thread fills."""
    events: list[Event] = []
    while arrived:
        events += arrived.popleft()
    return events
