"""One thread that opens a model and decodes for everybody else: requests join and leave by step.

Other threads hand in requests and cancellations at any time and are told of outputs by `post`, once
a step. The thread survives a step that fails; where steps fail one after another it ends, and says
so to everybody who waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal, TypeVar

from trtla.errors import RankLost, TrtlaError, sentence
from trtla.llm.llm import LLM
from trtla.llm.shared_executor import Caller
from trtla.runtime.executor import Executor
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats

T = TypeVar("T")
Event = tuple[int, Output | TrtlaError]
"""A request's id, and its next output or why there will be none."""
State = Literal["loading", "ready", "failed", "stopped"]

_MOST_FAILURES = 3
"""Steps that fail one after another until the model is given up."""
_LOOK_EVERY_S = 1.0
"""How often an idle thread looks whether the model's other ranks are there."""


@dataclass(slots=True)
class ReplicaCounts:
    """Of a model that runs in several processes."""

    running: int = 0
    """Replicas that answered when this was asked for."""
    reruns: int = 0
    """Times that a text went on elsewhere, since its replica was lost."""


class EngineThread:
    """A model behind a thread of its own.

    Args:
        open_model: opens the model; called in the thread.
        post: takes what a step brought, in the thread; an empty list where only `state` changed. It
            must neither raise nor wait. After `failed` and `stopped` no request has further events.
        log: takes a sentence about a step that failed.
    """

    replicas: ReplicaCounts | None = None
    """None: there are no replicas."""

    def __init__(
        self,
        open_model: Callable[[], LLM],
        post: Callable[[Sequence[Event]], None],
        log: Callable[[str], None],
    ) -> None:
        self._open, self._post, self._log = open_model, post, log
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._in_flight: dict[int, int] = {}
        """Output tokens that each request has reported."""
        self._failures = 0
        self._llm: LLM | None = None
        self._caller: Caller
        self.state: State = "loading"
        self.failure: BaseException | None = None
        """Why the state is `failed`."""
        self._thread = threading.Thread(target=self._run, name="trtla-engine", daemon=True)

    def start(self) -> None:
        """Begin to open the model."""
        self._thread.start()

    @property
    def llm(self) -> LLM:
        """The model, to make requests with and to read limits from.

        Raises:
            TrtlaError: it is not open.
        """
        if self._llm is None or self.state != "ready":
            raise TrtlaError(f"the model is {self.state}", "see its log")
        return self._llm

    def submit(self, requests: Iterable[Request], whole: bool = False) -> None:
        """Decode requests of this model; a request that is refused gets its error as an event.

        Args:
            whole: nobody reads the texts before their ends; here that is all the same.
        """
        for request in requests:
            self._put(lambda request=request: self._submit(request))  # type: ignore[misc]

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests before the next step; no events of these follow."""
        ids = tuple(request_ids)
        self._put(lambda: self._cancel(ids))

    def ask(self, work: Callable[[Executor], T]) -> Future[T]:
        """Do something with the executor between two steps."""
        future: Future[T] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self.llm.executor.call(work))
            except Exception as error:
                future.set_exception(error)

        self._put(answer)
        return future

    def _put(self, command: Callable[[], None]) -> None:
        """Have the thread do something; where it has ended, let that fail here."""
        self._commands.put(command)
        if self.state in ("failed", "stopped"):
            self._end()

    def stats(self) -> Future[ExecutorStats]:
        """The executor's counters, between two steps."""
        return self.ask(lambda executor: executor.stats())

    def stop(self, timeout: float | None = None) -> bool:
        """End the thread after its step and free the model; False where it goes on."""
        self._commands.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._open() as self._llm:
                self._caller = Caller()
                self._change("ready")
                while self._obey():
                    self._step()
            self._change("stopped")
        except BaseException as error:  # whatever it is, nobody may wait for ever
            self.failure = error
            self._change("failed")
        self._end()

    def _change(self, state: State) -> None:
        self.state = state
        self._post([])

    def _obey(self) -> bool:
        """Do what others ask for, and wait for them where nothing is in flight; False: end."""
        while not self._in_flight or not self._commands.empty():
            command = self._next_command()
            if command is None:
                return False
            command()
        return True

    def _next_command(self) -> Callable[[], None] | None:
        """Wait for it; raises `RankLost` where the model is lost meanwhile."""
        while True:
            try:
                return self._commands.get(timeout=_LOOK_EVERY_S)
            except Empty:
                self.llm.executor.call(lambda executor: executor.check_ranks())

    def _submit(self, request: Request) -> None:
        try:
            self.llm.executor.submit([request], self._caller)
        except Exception as error:
            self.llm.executor.drop(self._caller, [request.request_id])
            self._post([(request.request_id, _as_error(error))])
        else:
            self._in_flight[request.request_id] = 0

    def _cancel(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._in_flight.pop(request_id, None)
        if self.state != "ready":  # with the model all of them have ended
            return
        try:
            self.llm.executor.abandon(self._caller, request_ids)
        except Exception as error:  # the next step cancels them
            self._log(f"a cancelled request did not end: {sentence(error)}")

    def _step(self) -> None:
        """Decode until there are outputs, and post all there are."""
        try:
            outputs = [self.llm.executor.receive(self._caller)]
        except RankLost:  # no step will ever succeed
            raise
        except Exception as error:
            self._failures += 1
            self._log(f"a step failed ({self._failures} in a row): {sentence(error)}")
            if self._failures >= _MOST_FAILURES:
                raise
            return
        with suppress(Empty):
            while True:
                output = self._caller.inbox.get_nowait()
                outputs += [] if output is None else [output]
        news = [output for output in outputs if self._is_news(output)]
        if news:  # else a failed step had the last ones sent once more
            self._failures = 0
        self._post([(one.request_id, one) for one in outputs if one.request_id in self._in_flight])
        for output in outputs:
            if output.finish_reason is not None:
                self._in_flight.pop(output.request_id, None)
                self.llm.executor.forget(output.request_id)

    def _is_news(self, output: Output) -> bool:
        """Whether it goes on where a request's last one ended, which it then is."""
        known = self._in_flight.get(output.request_id)
        length = output.start + len(output.new_tokens)
        if known is None or (output.finish_reason is None and length <= known):
            return False
        self._in_flight[output.request_id] = length
        return True

    def _end(self) -> None:
        """Let nobody wait for what will not be done."""
        self._in_flight.clear()
        with suppress(Empty):
            while True:
                command = self._commands.get_nowait()
                with suppress(TrtlaError):
                    command() if command else None


def _as_error(error: Exception) -> TrtlaError:
    return error if isinstance(error, TrtlaError) else TrtlaError(sentence(error))
