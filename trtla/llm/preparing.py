"""Lanes in which requests are made ready, away from the event loop: prompts may be long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Preparing:
    """Lanes, each of which begins when it is first asked for. None holds up the process's end."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Have work done; work that is cancelled before it begins is not."""
        future: Future[T] = Future()
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(lane)
        self._lanes[lane].work.put((future, work))
        return future

    async def done(self, lane: str, work: Callable[[], T]) -> T:
        """What work brings; it is cancelled with whoever waits for it."""
        return await asyncio.wrap_future(self.submit(lane, work))

    @property
    def busy_s(self) -> float:
        """For how long the oldest work that has begun is being done; 0: none is."""
        lanes = tuple(self._lanes.values())
        begun = [began for lane in lanes if (began := lane.began) is not None]
        return time.monotonic() - min(begun) if begun else 0.0

    def stop(self) -> None:
        """Let the threads end after what they are doing."""
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
            del task, future, work  # nothing of a request stays while the thread waits
