"""The thread that owns an executor: it runs all steps and delivers each output once.

Requests, cancellations and calls come from any thread at any time, and are handled between two
forwards in the order of arrival. Signals, which Python raises in the main thread, and finalisers
therefore never interrupt a step.

Where a forward computes on all cores, a thread that wakes for each output delays it: a small model
loses a tenth of its speed. So readers are woken as rarely as they can be.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from trtla.errors import RankLost, TrtlaError, sentence
from trtla.llm.decoder import Event, Receive, ReplicaCounts, closed, refusal
from trtla.runtime.executor import Executor, check_process
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats

T = TypeVar("T")

_log = logging.getLogger(__name__)
_MOST_FAILURES = 3
"""Consecutive failing steps after which the requests in flight are given up."""
_LOOK_EVERY_S = 1.0
"""Interval at which an idle thread checks the model's other ranks."""
_KEPT = 32
"""Most outputs that reach the reader together of a text that is only read at its end."""
_COALESCE_S = 0.016
"""Seconds after which a reader that has just read looks again on its own: a picture on a screen."""
_LONGEST_STEP_S = 30.0
"""Longest wait for a model that is still open at the end of the process."""
_OPEN: weakref.WeakSet[EngineThread] = weakref.WeakSet()


@dataclass(slots=True)
class _Delivery:
    """The reader of a request in flight, and how many of its tokens were delivered or kept."""

    receive: Receive
    length: int
    room: int
    """Outputs to keep before they are delivered together; 0: none."""
    kept: list[Event] = field(default_factory=list)

    def take(self, output: Output) -> list[Event]:
        """Add an output, and return what is to be delivered now; a text's first tokens always
        are."""
        is_first = not self.length
        self.length = output.start + len(output.new_tokens)
        self.kept.append((output.request_id, output))
        if len(self.kept) < self.room and output.finish_reason is None and not is_first:
            return []
        events, self.kept = self.kept, []
        return events


class _Call(Future[T]):
    """The result of a call; `left`: its caller was interrupted, and waits no longer."""

    left = False


class EngineThread:
    """An executor behind a thread of its own, which ends with `close` or with the process.

    A failed step is repeated. After several in a row, or if none can succeed any more, every
    request in flight gets the error; later requests are tried again.
    """

    replicas: ReplicaCounts | None = None
    """None: the model runs in this process."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._process = os.getpid()
        self._commands: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._texts: dict[int, _Delivery] = {}
        self._call: _Call[Any] | None = None
        self._failures = 0
        self._lost = False
        """The other ranks have ended."""
        self._ending = False
        """The thread ends as soon as it can."""
        self._ended = False
        self.log: Callable[[str], object] = _log.warning
        """Takes a sentence about a step that failed."""
        self.on_failure: Callable[[BaseException], object] = lambda error: None
        """Takes the error for which all requests in flight are given up, before they get it."""
        self.coalesce_s = _COALESCE_S if executor.shares_cores else 0.0
        """Seconds in which a reader need not be woken again; 0: it may be woken any time."""
        executor.interrupted = self._interrupted
        _OPEN.add(self)
        self._thread = threading.Thread(target=self._run, name="trtla-engine", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `TrtlaError` in a forked process, and within a step of this executor."""
        check_process(self._process)
        if threading.current_thread() is self._thread:
            raise TrtlaError(
                "the model is used from within one of its own steps",
                "use it when the step has ended, or open the model a second time",
            )

    def submit(self, requests: Iterable[Request], receive: Receive, whole: bool = False) -> None:
        """Decode requests that fit the executor's limits; a refused one gets an output with the
        error.

        Args:
            whole: texts are only read at their ends: after its first tokens, some of a text's
                outputs are delivered together.
        """
        new, room = tuple(requests), _KEPT if whole else 0
        self._put(lambda: self._submit(new, receive, room))

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests before the next forward; none of their events follow. Never raises."""
        ids = tuple(request_ids)
        if ids and not self._ended and os.getpid() == self._process:
            self._put(lambda: self._cancel(ids))

    def ask(self, work: Callable[[Executor], T]) -> _Call[T]:
        future: _Call[T] = _Call()
        self._put(lambda: self._answer(work, future))
        return future

    def call(self, work: Callable[[Executor], T]) -> T:
        self.check()
        future = self.ask(work)
        try:
            return future.result()
        finally:
            future.cancel()
            future.left = True

    def stats(self) -> ExecutorStats:
        """Return counters over everything so far, also of a closed model."""
        try:
            return self.call(lambda executor: executor.stats())
        except TrtlaError:
            if not self._ended:
                raise
            return self._executor.stats()

    def stats_later(self) -> Future[ExecutorStats]:
        return self.ask(lambda executor: executor.stats())

    def close(self, timeout: float | None = None) -> bool:
        """End after the forward it is in, and free the executor; False if that takes longer.

        Requests and calls that have not ended get a `TrtlaError`. Does nothing in a forked process.
        """
        if os.getpid() != self._process:
            return True
        inside = threading.current_thread() is self._thread  # a finaliser, which cannot wait
        self.stop(0 if inside else timeout)
        if inside or not self._ended:
            self._put(self._executor.close)  # the thread's last command
            return False
        self._executor.close()
        return True

    def stop(self, timeout: float | None = 0) -> None:
        """Let the thread end, and wait for it."""
        self._commands.put(None)
        self._ending = True
        if timeout != 0:
            self._thread.join(timeout)

    def _put(self, command: Callable[[], object]) -> None:
        """Queue a command for the thread; if that has ended, run it here, where it fails."""
        check_process(self._process)
        self._commands.put(command)
        if self._ended:
            self._drain()

    def _run(self) -> None:
        try:
            while self._obey():
                self._step()
        finally:
            self._ended = True
            self._give_up(closed())
            self._drain()

    def _drain(self) -> None:
        with suppress(Empty):
            while True:
                command = self._commands.get_nowait()
                command() if command else None

    def _interrupted(self) -> bool:
        if self._call is None:
            return not self._commands.empty()
        return self._ending or self._call.left

    def _obey(self) -> bool:
        """Run others' commands, and wait for them if nothing is in flight; False: end.

        Streams and callers take turns: commands that arrive meanwhile wait for the next step.
        """
        left = self._commands.qsize()
        while left > 0 or not self._texts:
            command = self._next_command()
            if command is None:
                return False
            command()
            left -= 1
        return True

    def _next_command(self) -> Callable[[], object] | None:
        while True:
            try:
                return self._commands.get(timeout=None if self._lost else _LOOK_EVERY_S)
            except Empty:
                try:
                    self._executor.check_ranks()
                except Exception as error:
                    self._lost = True
                    self._give_up(error)

    def _submit(self, requests: Sequence[Request], receive: Receive, room: int) -> None:
        for request in requests:
            if self._ended:
                receive([(request.request_id, closed())])
                continue
            try:
                self._executor.enqueue(request)
            except BaseException as error:  # of any kind, so that no reader waits indefinitely
                self._drop(request.request_id)
                receive([(request.request_id, refusal(request, error))])
            else:
                self._texts[request.request_id] = _Delivery(receive, len(request.begun), room)

    def _cancel(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            if self._texts.pop(request_id, None) is not None:
                self._drop(request_id)

    def _drop(self, request_id: int) -> None:
        try:
            self._executor.cancel(request_id)
        except BaseException as error:  # the next step cancels it
            self.log(f"a cancelled request did not end: {sentence(error)}")

    def _answer(self, work: Callable[[Executor], T], future: _Call[T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._call = future
        try:
            if self._ended:
                raise closed()
            future.set_result(work(self._executor))
        except BaseException as error:
            cut = self._ending and isinstance(error, TrtlaError)
            future.set_exception(closed() if cut else error)
        self._call = None

    def _step(self) -> None:
        """Decode until there are outputs or commands."""
        try:
            outputs = self._executor.poll()
            if not outputs and self._commands.empty():
                raise TrtlaError(
                    "the executor has nothing in flight, and a request has not ended",
                    "ask again; if that does not help, open the model again",
                )
        except BaseException as error:
            self._fail(error)
        else:
            self._deliver(outputs)

    def _fail(self, error: BaseException) -> None:
        self._failures += 1
        if isinstance(error, RankLost):  # no step will ever succeed
            self._give_up(error)
            return
        self.log(f"a step failed ({self._failures} in a row): {sentence(error)}")
        if self._failures >= _MOST_FAILURES:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        texts, self._texts, self._failures = self._texts, {}, 0
        for request_id in texts:
            self._drop(request_id)
        if not self._ended:
            self.on_failure(error)
        for request_id, text in texts.items():
            text.receive([(request_id, error)])

    def _deliver(self, outputs: Iterable[Output]) -> None:
        """Deliver a step's outputs; after a failed step the executor repeats all earlier ones."""
        posts: dict[Receive, list[Event]] = {}
        for output in outputs:
            text = self._texts.get(output.request_id)
            if text is None or output.start < text.length:
                continue
            self._failures = 0
            if output.finish_reason is not None:
                del self._texts[output.request_id]
            if events := text.take(output):
                posts.setdefault(text.receive, []).extend(events)
        for receive, events in posts.items():
            receive(events)


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
        self._news = threading.Event()
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


@atexit.register
def _end_all() -> None:
    for engine in tuple(_OPEN):
        engine.stop(_LONGEST_STEP_S)
