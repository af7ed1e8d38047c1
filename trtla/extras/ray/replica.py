"""A replica: a model in a process of Ray Serve, which decodes one text a call for the server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from threading import Thread

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.formats.engine import model_digest
from trtla.llm.async_engine import AsyncEngine
from trtla.llm.decoder import refusal
from trtla.llm.llm import LLM
from trtla.llm.text import Tokenizer
from trtla.llm.text_stream import StopStrings
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats


@dataclass(frozen=True, slots=True)
class Opened:
    """A replica's description of its model."""

    limits: ExecutorLimits
    description: str


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica's state while it runs."""

    replica: str
    process: int
    stats: ExecutorStats


def packed(request: Request, begun: Sequence[int], left_ms: int | None) -> Request:
    """Prepare a request for sending; some of its tokens may be known.

    Args:
        left_ms: of its time; None: unlimited.
    """
    sampling = replace(request.sampling, allotted_time_ms=left_ms)
    return replace(request, sampling=sampling, begun=tuple(begun), stop_check=None, grammar=None)


def unpacked(request: Request, request_id: int, tokenizer: Tokenizer | None) -> Request:
    """Restore a received request but for its grammar, with an id of the decoding process."""
    check: Callable[[list[int]], bool] | None = None
    if request.sampling.stop and tokenizer is not None:
        stop = request.sampling.stop
        check = StopStrings(partial(tokenizer.stream, request.input_ids, stop))
    return replace(request, request_id=request_id, stop_check=check)


_UNCOUNTED = RequestStats()


def light(output: Output) -> Output:
    """Prepare an output for sending: the counters, which grow with the text, go with the last
    one."""
    error = None if output.error is None else plain(output.error)
    stats = _UNCOUNTED if output.finish_reason is None else output.stats
    return replace(output, stats=stats, error=error)


def plain(error: BaseException) -> TrtlaError:
    """Convert an error to one that can be pickled."""
    if not isinstance(error, TrtlaError):
        return TrtlaError(sentence(error))
    if isinstance(error, UsageError):
        return UsageError(error._message, error._hint, error.setting)
    return TrtlaError(error.message, error.hint)


_GATHER_S = (0.02, 0.01, 0.1)
"""Steps of a text travel together if they come within a time, since each message costs some work:
at least the first, the second for each text in flight here, at most the third."""
_WHOLE_S = 1.0
"""That time for texts that are only read at their ends: limits the loss when a replica dies."""
LEASE_S = 60.0
"""Replicas that hear from no server for so long end themselves and their application."""


class ReplicaLost(Exception):
    """The model here has failed, which need not be the request's fault."""


class NotOpen(Exception):
    """The model here was not open when a request came, which is not the request's fault."""


def open_same(open_model: Callable[[], LLM], digest: str) -> LLM:
    """Open a model, which must have the digest that the server read."""
    llm = open_model()
    if model_digest(llm.engine) == digest:
        return llm
    llm.close()
    raise UsageError(
        f"{llm.engine.path} holds another model than when the server began",
        "restart the server, or give it back its model",
    )


class _Inbox:
    """Outputs of one text that are not sent yet."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.news = asyncio.Event()
        self.ended = asyncio.Event()

    def put(self, request_id: int, events: Sequence[Output | BaseException]) -> None:
        for event in events:
            if not isinstance(event, BaseException):
                self.outputs.append(light(event))
            if isinstance(event, BaseException) or event.finish_reason is not None:
                self.ended.set()
        self.news.set()

    def take(self) -> list[Output]:
        outputs, self.outputs = self.outputs, []
        self.news.clear()
        return outputs


class Replica:
    """The deployment's class. It opens its model at once, and reports the result in `opened`.

    Ray Serve sends nothing before its first `check_health` has returned, when the model is open.

    Args:
        open_model: opens the model.
        app: the application's name in Ray Serve, which ends with its server.
    """

    def __init__(self, open_model: Callable[[], LLM], app: str) -> None:
        self._app, self._ids = app, count()
        self._heard: float | None = None  # since the opening
        self._engine = AsyncEngine(open_model, print)
        self._engine.begin()

    async def opened(self) -> Opened | TrtlaError:
        """Wait for the model; return its description, or the error."""
        await self._engine.changed.wait()
        if self._engine.failure is not None:
            return plain(self._engine.failure)
        llm = self._engine.llm
        return Opened(llm.limits, llm.description)

    async def stream(self, request: Request, whole: bool = False) -> AsyncIterator[list[Output]]:
        """Yield the outputs of one text.

        Raises:
            NotOpen: the model was not open to begin with.
            ReplicaLost: the model has failed.
        """
        if self._engine.state != "ready":
            raise NotOpen(self._why())
        llm = self._engine.llm
        local = unpacked(request, next(self._ids), llm.tokenizer)
        try:
            if local.sampling.grammar is not None:
                start = await asyncio.to_thread(llm.grammar_start, local.sampling, local.label)
                local = replace(local, grammar=start)
            llm.limits.check(local)  # it comes from another process
        except UsageError as error:
            yield [light(refusal(local, error))]
            return
        inbox, ended = _Inbox(), False
        self._engine.submit([local], inbox.put)
        try:
            while not ended:
                await inbox.news.wait()
                outputs = inbox.take()
                ended = any(output.finish_reason for output in outputs)
                if outputs:
                    yield outputs
                elif self._engine.state != "ready":
                    raise ReplicaLost(self._why())
                if not ended:
                    await self._gather(inbox, whole)
        finally:
            self._engine.cancel([local.request_id])

    async def _gather(self, inbox: _Inbox, whole: bool) -> None:
        """Wait for more of a text, unless it has ended."""
        least, each, most = _GATHER_S
        time_s = _WHOLE_S if whole else min(most, max(least, each * self._engine.num_in_flight))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(inbox.ended.wait(), time_s)

    async def report(self) -> ReplicaReport:
        """Report its state; the call also shows that the server is alive."""
        from ray import serve

        self._heard = time.monotonic()
        stats = await self._engine.stats()
        return ReplicaReport(serve.get_replica_context().replica_tag, os.getpid(), stats)

    async def check_health(self) -> None:
        """Answer Ray Serve, which replaces a replica that raises.

        The first call waits for the model. If that cannot be opened while the application starts,
        the call returns normally, so that `opened` can report why.
        """
        is_first, now = self._heard is None, time.monotonic()
        if is_first:
            await self._engine.changed.wait()
            self._heard = now = time.monotonic()
        if self._engine.state == "failed":
            if not is_first or not await asyncio.to_thread(_comes_up, self._app):
                raise ReplicaLost(self._why())
        elif now - (self._heard or now) > LEASE_S:
            self._heard = now
            Thread(target=_end, args=(self._app,), daemon=True).start()

    def _why(self) -> str:
        failure = self._engine.failure
        state = f"the model is {self._engine.state}"
        return state if failure is None else f"{state}: {plain(failure).message}"


def _comes_up(app: str) -> bool:
    from ray import serve

    return bool(serve.status().applications[app].status == "DEPLOYING")


def _end(app: str) -> None:
    from ray import serve

    serve.delete(app)
