"""A model that is opened while others wait, and whose outputs all go to one place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, TypeVar

from trtla.errors import TrtlaError
from trtla.llm.engine_thread import Event
from trtla.llm.llm import LLM
from trtla.runtime.request import Request
from trtla.runtime.stats import ExecutorStats

T = TypeVar("T")
State = Literal["loading", "ready", "failed", "stopped"]


@dataclass(slots=True)
class ReplicaCounts:
    """Of a model that runs in several processes."""

    running: int = 0
    """Replicas that answered when this was asked for."""
    reruns: int = 0
    """Times that a text went on elsewhere, since its replica was lost."""


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Have something done in a thread of its own, which the process's end waits for."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="trtla-open").start()
    return future


class BackgroundLLM:
    """An `LLM` that is opened in a thread of its own.

    Args:
        open_model: opens the model.
        post: takes what a step brought, in the engine's thread; an empty list where only `state`
            changed. It must neither raise nor wait. After `failed` and `stopped` no request has
            further events.
        log: takes a sentence about a step that failed.
    """

    replicas: ReplicaCounts | None = None
    """None: there are no replicas."""

    def __init__(
        self,
        open_model: Callable[[], LLM],
        post: Callable[[Sequence[Event]], object],
        log: Callable[[str], object],
    ) -> None:
        self._open_model, self._post, self._log = open_model, post, log
        self._lock = threading.Lock()
        self._opening: Future[None] | None = None
        self._stopping = False
        self._llm: LLM | None = None
        self.state: State = "loading"
        self.failure: BaseException | None = None
        """Why the state is `failed`."""

    def start(self) -> None:
        """Begin to open the model."""
        self._opening = in_thread(self._open)

    @property
    def llm(self) -> LLM:
        """The model; raises `TrtlaError` where it is not open."""
        if self._llm is None or self.state != "ready":
            raise TrtlaError(f"the model is {self.state}", "see its log")
        return self._llm

    def submit(self, requests: Iterable[Request], whole: bool = False) -> None:
        """Decode requests of this model; one that is refused gets its error as an event.

        Args:
            whole: nobody reads the texts before their ends; here that is all the same.
        """
        if self._llm is not None:
            self._llm.executor.submit(requests, self._post)

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests before the next step; no events of these follow."""
        if self._llm is not None:
            self._llm.executor.cancel(request_ids)

    def stats(self) -> Future[ExecutorStats]:
        """The executor's counters, between two steps."""
        return self.llm.executor.ask(lambda executor: executor.stats())

    def stop(self, timeout: float | None = None) -> bool:
        """Free the model after the forward it is in; False where that takes longer."""
        with self._lock:
            self._stopping = True
        if self._llm is not None:
            ended = self._llm.executor.close(timeout)
            if ended and self.state == "ready":
                self._change("stopped")
            return ended
        try:
            return self._opening is None or self._opening.result(timeout) is None
        except TimeoutError:
            return False

    def _open(self) -> None:
        try:
            llm = self._open_model()
        except BaseException as error:  # whatever it is, nobody may wait indefinitely
            self._fail(error)
            return
        llm.executor.log, llm.executor.on_failure = self._log, self._fail
        with self._lock:
            stopped = self._stopping
            self._llm = None if stopped else llm
            self.state = "stopped" if stopped else "ready"
        if stopped:
            llm.close()
        self._change(self.state)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._change("failed")

    def _change(self, state: State) -> None:
        self.state = state
        self._post([])
