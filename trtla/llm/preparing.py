"""Lanes that prepare requests away from the event loop, since prompts may be long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
GRAMMARS = "grammars"
"""The lane of requests with grammars, behind the tables that these need."""


class Preparing:
    """Lanes, each created on first use. None of them delays the end of the process."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Queue work; work that is cancelled before it begins is not done."""
        future: Future[T] = Future()
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(lane)
        self._lanes[lane].work.put((future, work))
        return future

    async def done(self, lane: str, work: Callable[[], T]) -> T:
        """Wait for work's result; it is cancelled together with the waiting task."""
        return await asyncio.wrap_future(self.submit(lane, work))

    @property
    def busy_s(self) -> float:
        """Seconds since the oldest unfinished work has begun; 0 if there is none."""
        lanes = tuple(self._lanes.values())
        begun = [began for lane in lanes if (began := lane.began) is not None]
        return time.monotonic() - min(begun) if begun else 0.0

    def stop(self) -> None:
        """Let the threads end after their present work."""
        for lane in tuple(self._lanes.values()):  # a model that is being opened may add one
            lane.work.put(None)


class _Lane:
    def __init__(self, name: str) -> None:
        self.work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.began: float | None = None
        Thread(target=self._run, name=f"trtla-prepare-{name}", daemon=True).start()

    def _run(self) -> None:
        while (task := self.work.get()) is not None:
            future, work = task
            if not future.set_running_or_notify_cancel():
                continue
            self.began = time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            self.began = None
            del task, future, work  # a waiting thread keeps nothing of a request
