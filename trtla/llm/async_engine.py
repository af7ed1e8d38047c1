"""A model as an event loop uses it: it opens and decodes in other threads, its events come here.

`AsyncLLM`, the server and each replica of a server run on it. Requests are decoded by the model's
own thread, or by replicas in other processes: both are a `Decoder`.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from typing import Literal, TypeVar

from trtla.errors import TrtlaError, UsageError
from trtla.llm.engine_thread import Event, closed
from trtla.llm.preparing import Preparing
from trtla.llm.prompt import RequestMaker
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats

T = TypeVar("T")
State = Literal["loading", "ready", "failed", "stopped"]
Take = Callable[[int, Output | BaseException], object]
"""Takes a request's next event, on the event loop."""


class AsyncEngine:
    """A model, from its opening to its end; it belongs to the event loop on which that begins.

    Args:
        open_model: opens it, in a thread of its own.
        log: takes sentences about steps that fail; None: they are logged, and a failure is known
            to those alone whose requests were in flight.
    """

    def __init__(
        self, open_model: Callable[[], RequestMaker], log: Callable[[str], object] | None = None
    ) -> None:
        self._new, self._log = open_model, log
        self._opening: Future[RequestMaker] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._takers: dict[int, Take] = {}
        self.lanes, self._closed = Preparing(), False
        self._failure: BaseException | None = None
        self.changed = asyncio.Event()
        """Set where there is a log: when the model is open, and when it fails."""
        weakref.finalize(self, self.lanes.stop).atexit = False

    def begin(self) -> None:
        """Begin to open the model, unless that has begun."""
        if self._opening is None and not self._closed:
            self._loop = asyncio.get_running_loop()
            self._opening = in_thread(self._open)
            if self._log is not None:
                self._opening.add_done_callback(self._change)

    def _open(self) -> RequestMaker:
        llm = self._new()
        if self._log is not None:
            llm.executor.log, llm.executor.on_failure = self._log, self._fail
        return llm

    async def open(self) -> None:
        """Open the model, if it is not open; what `LLM` raises is raised here."""
        self.begin()
        if self._opening is not None and not self._closed:
            if self._loop is not asyncio.get_running_loop():
                raise UsageError(
                    "the model was opened in another event loop", "open one in each, or stay in one"
                )
            await asyncio.wrap_future(self._opening)
        if self._closed:
            raise closed()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._change()

    def _change(self, *_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.changed.set)

    @property
    def failure(self) -> BaseException | None:
        """Why the model could not be opened, or has given up all that was in flight."""
        opening = self._opening
        found = opening.exception() if opening is not None and opening.done() else None
        return found or self._failure

    @property
    def state(self) -> State:
        if self.failure is not None:
            return "failed"
        if self._closed:
            return "stopped"
        return "ready" if self._opening is not None and self._opening.done() else "loading"

    @property
    def llm(self) -> RequestMaker:
        """What makes the requests, once the model is open."""
        if self._opening is None or not self._opening.done():
            raise TrtlaError("the model is not open", "await its open(), or use async with")
        return self._opening.result()

    @property
    def num_in_flight(self) -> int:
        return len(self._takers)

    def submit(self, requests: Iterable[Request], take: Take, whole: bool = False) -> None:
        """Decode requests of this open model; one that is refused gets its error as an event.

        Args:
            whole: nobody reads the texts before their ends.
        """
        new = tuple(requests)
        self._takers.update({request.request_id: take for request in new})
        self.llm.executor.submit(new, self._post, whole)

    def cancel(self, request_ids: Iterable[int]) -> int:
        """End requests before the next step; no events of these follow. How many had not ended."""
        left = [one for one in request_ids if self._takers.pop(one, None)]
        if left:
            self.llm.executor.cancel(left)
        return len(left)

    def _post(self, events: Sequence[Event]) -> None:
        """Hand over to the loop what a step brought; if that is closed, nobody waits any more."""
        try:
            self._loop.call_soon_threadsafe(self._dispatch, events)
        except RuntimeError:
            self.llm.executor.cancel(tuple(self._takers))

    def _dispatch(self, events: Sequence[Event]) -> None:
        for request_id, event in events:
            take = self._takers.get(request_id)
            if take is None:
                continue
            if isinstance(event, BaseException) or event.finish_reason is not None:
                del self._takers[request_id]
            take(request_id, event)

    async def stats(self) -> ExecutorStats:
        """Counters over everything generated so far."""
        await self.open()
        return await asyncio.wrap_future(self.llm.executor.stats_later())

    async def close(self, timeout: float | None = None) -> None:
        """Free the model after the forward it is in; texts that have not ended raise
        `TrtlaError`. No longer than `timeout` is waited for that."""
        self._closed = True
        self.lanes.stop()
        if self._opening is not None:
            loop = asyncio.get_running_loop()  # the one it was opened in may be gone
            await asyncio.shield(loop.run_in_executor(None, _close, self._opening, timeout))

    def _close_later(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.add_done_callback(_close)


def _close(opening: Future[RequestMaker], timeout: float | None = None) -> None:
    with suppress(Late):
        if opening.exception(timeout) is None:
            opening.result().executor.close(timeout)


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Have something done in a thread of its own, which the process's end waits for."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whatever it is, nobody may wait indefinitely
            future.set_exception(error)

    threading.Thread(target=run, name="trtla-open").start()
    return future
