"""A model on an event loop: it opens and decodes in other threads, and its events arrive here.

`AsyncLLM`, the server and each replica of a server run on it. Requests are decoded by the model's
own thread, or by replicas in other processes: both are a `Decoder`.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from typing import Literal, TypeVar

from trtla.errors import TrtlaError, UsageError
from trtla.llm.decoder import Event, closed
from trtla.llm.engine_thread import Coalescer, taken
from trtla.llm.preparing import GRAMMARS, Preparing
from trtla.llm.prompt import RequestMaker
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats

T = TypeVar("T")
State = Literal["loading", "ready", "failed", "stopped"]
Take = Callable[[int, Sequence[Output | BaseException]], object]
"""Takes a request's next events, on the event loop."""


class AsyncEngine:
    """A model, from opening to closing; it belongs to the event loop on which that begins.

    Args:
        open_model: opens it, called in a thread of its own.
        log: takes sentences about failing steps; None: they are logged, and a failure only reaches
            the requests that were in flight.
    """

    def __init__(
        self, open_model: Callable[[], RequestMaker], log: Callable[[str], object] | None = None
    ) -> None:
        self._new, self._log = open_model, log
        self._opening: Future[RequestMaker] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._takers: dict[int, Take] = {}
        self._arrived: deque[Sequence[Event]] = deque()
        self._coalescer = Coalescer(0.0)
        self._timer: asyncio.TimerHandle | None = None
        self.lanes, self._closed = Preparing(), False
        self._failure: BaseException | None = None
        self.changed = asyncio.Event()
        """Set if there is a log: when the model is open, and when it fails."""
        weakref.finalize(self, self.lanes.stop).atexit = False

    def begin(self) -> None:
        """Begin to open the model, once."""
        if self._opening is None and not self._closed:
            self._loop = asyncio.get_running_loop()
            self._opening = in_thread(self._open)
            if self._log is not None:
                self._opening.add_done_callback(self._change)

    def _open(self) -> RequestMaker:
        llm = self._new()
        self._coalescer = Coalescer(llm.executor.coalesce_s)
        if self._log is not None:
            llm.executor.log, llm.executor.on_failure = self._log, self._fail
            self.lanes.submit(GRAMMARS, llm.prepare_grammars)
        return llm

    async def open(self) -> None:
        """Open the model if necessary; raises the errors of `LLM`."""
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
        """The reason why the model could not be opened, or has given up all requests in flight."""
        opening = self._opening
        error = opening.exception() if opening is not None and opening.done() else None
        return error or self._failure

    @property
    def state(self) -> State:
        if self.failure is not None:
            return "failed"
        if self._closed:
            return "stopped"
        return "ready" if self._opening is not None and self._opening.done() else "loading"

    @property
    def llm(self) -> RequestMaker:
        """The maker of requests, once the model is open."""
        if self._opening is None or not self._opening.done():
            raise TrtlaError("the model is not open", "await its open(), or use async with")
        return self._opening.result()

    @property
    def num_in_flight(self) -> int:
        return len(self._takers)

    def submit(self, requests: Iterable[Request], take: Take, whole: bool = False) -> None:
        """Decode requests of this open model; a refused one gets its error as an event.

        Args:
            whole: texts are only read at their ends.
        """
        new = tuple(requests)
        self._takers.update({request.request_id: take for request in new})
        self.llm.executor.submit(new, self._post, whole)

    def cancel(self, request_ids: Iterable[int]) -> int:
        """End requests before the next step, without further events; return how many had not
        ended."""
        left = [id_ for id_ in request_ids if self._takers.pop(id_, None)]
        if left:
            self.llm.executor.cancel(left)
        return len(left)

    def _post(self, events: Sequence[Event]) -> None:
        """Hand a step's events to the loop; if that is closed, end all requests."""
        self._arrived.append(events)
        if self._coalescer.wakes(events):
            try:
                self._loop.call_soon_threadsafe(self._look)
            except RuntimeError:
                self.llm.executor.cancel(tuple(self._takers))

    def _look(self) -> None:
        """Dispatch the events that have arrived, and look again a little later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._coalescer.begin()
        if events := taken(self._arrived):
            self._dispatch(events)
            if seconds := self._coalescer.end():
                self._timer = self._loop.call_later(seconds, self._look)

    def _dispatch(self, events: Sequence[Event]) -> None:
        together: dict[int, list[Output | BaseException]] = {}
        for request_id, event in events:
            together.setdefault(request_id, []).append(event)
        for request_id, new in together.items():
            take = self._takers.get(request_id)
            if take is None:
                continue
            if isinstance(new[-1], BaseException) or new[-1].finish_reason is not None:
                del self._takers[request_id]
            take(request_id, new)

    async def stats(self) -> ExecutorStats:
        """Return counters over everything generated so far."""
        await self.open()
        return await asyncio.wrap_future(self.llm.executor.stats_later())

    async def close(self, timeout: float | None = None) -> None:
        """Free the model after the forward that it is in, waiting up to `timeout`; texts that have
        not ended raise `TrtlaError`."""
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
    """Run work in a thread of its own, which the end of the process waits for."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # of any kind, so that no caller waits indefinitely
            future.set_exception(error)

    threading.Thread(target=run, name="trtla-open").start()
    return future
