"""A replica: a model in a process of Ray Serve, asked by the server for one text a call."""

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
from trtla.llm.engine_thread import refusal
from trtla.llm.llm import LLM
from trtla.llm.text import Tokenizer
from trtla.llm.text_stream import StopStrings
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats


@dataclass(frozen=True, slots=True)
class Opened:
    """What a replica says of its model."""

    limits: ExecutorLimits
    description: str


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica says of itself while it runs."""

    replica: str
    process: int
    stats: ExecutorStats


def packed(request: Request, begun: Sequence[int], left_ms: int | None) -> Request:
    """A request as it travels, for a text of which some tokens may be known.

    Args:
        left_ms: of its time; None: it has no limit.
    """
    sampling = replace(request.sampling, allotted_time_ms=left_ms)
    return replace(request, sampling=sampling, begun=tuple(begun), stop_check=None)


def unpacked(request: Request, request_id: int, tokenizer: Tokenizer | None) -> Request:
    """A request that has arrived, under an id of who decodes it."""
    check: Callable[[list[int]], bool] | None = None
    if request.sampling.stop and tokenizer is not None:
        stop = request.sampling.stop
        check = StopStrings(partial(tokenizer.stream, request.input_ids, stop))
    return replace(request, request_id=request_id, stop_check=check)


_UNCOUNTED = RequestStats()


def light(output: Output) -> Output:
    """An output as it travels: the counters, which grow with the text, go with the last one."""
    error = None if output.error is None else plain(output.error)
    stats = _UNCOUNTED if output.finish_reason is None else output.stats
    return replace(output, stats=stats, error=error)


def plain(error: BaseException) -> TrtlaError:
    """An error that can travel, whatever it holds."""
    if not isinstance(error, TrtlaError):
        return TrtlaError(sentence(error))
    kind = UsageError if isinstance(error, UsageError) else TrtlaError
    return kind(error.message, error.hint)


_GATHER_S = (0.02, 0.01, 0.1)
"""Steps of a text that come within a time travel together, since each journey costs some work: at
least the first, the second for each text that is in flight here, at most the third."""
_WHOLE_S = 1.0
"""That time for texts that nobody reads before their ends: what goes on elsewhere, if need be."""
LEASE_S = 60.0
"""Replicas that no server has spoken to for so long end themselves, and all of their kind."""


class ReplicaLost(Exception):
    """The model here has failed, which need not be the request's fault."""


class NotOpen(Exception):
    """The model here was not open when a request came, which has nothing to do with it."""


def open_same(open_model: Callable[[], LLM], digest: str) -> LLM:
    """Open a model, which must be the one that the server read the digest of."""
    llm = open_model()
    if model_digest(llm.engine) == digest:
        return llm
    llm.close()
    raise UsageError(
        f"{llm.engine.path} holds another model than when the server began",
        "restart the server, or give it back its model",
    )


class _Inbox:
    """What the model brought for one text, and has not gone out yet."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.news = asyncio.Event()
        self.ended = asyncio.Event()

    def put(self, request_id: int, event: Output | BaseException) -> None:
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
    """The deployment's class. It opens its model at once, and says in `opened` how that went.

    Ray Serve sends it nothing before its first `check_health` has returned, when the model is open.

    Args:
        open_model: opens the model.
        app: the application's name in Ray Serve, which ends with its server.
    """

    def __init__(self, open_model: Callable[[], LLM], app: str) -> None:
        self._app, self._ids = app, count()
        self._heard: float | None = None  # from the opening on
        self._engine = AsyncEngine(open_model, print)
        self._engine.begin()

    async def opened(self) -> Opened | TrtlaError:
        """The model, when it is open, or why it cannot be."""
        await self._engine.changed.wait()
        if self._engine.failure is not None:
            return plain(self._engine.failure)
        llm = self._engine.llm
        return Opened(llm.limits, llm.description)

    async def stream(self, request: Request, whole: bool = False) -> AsyncIterator[list[Output]]:
        """What the steps of one text bring.

        Raises:
            NotOpen: the model was not open to begin with.
            ReplicaLost: the model has failed.
        """
        if self._engine.state != "ready":
            raise NotOpen(self._why())
        own = unpacked(request, next(self._ids), self._engine.llm.tokenizer)
        try:
            self._engine.llm.limits.check(own)  # it comes from another process
        except UsageError as error:
            yield [light(refusal(own, error))]
            return
        inbox, ended = _Inbox(), False
        self._engine.submit([own], inbox.put)
        try:
            while not ended:
                await inbox.news.wait()
                outputs = inbox.take()
                ended = any(one.finish_reason for one in outputs)
                if outputs:
                    yield outputs
                elif self._engine.state != "ready":
                    raise ReplicaLost(self._why())
                if not ended:
                    await self._gather(inbox, whole)
        finally:
            self._engine.cancel([own.request_id])

    async def _gather(self, inbox: _Inbox, whole: bool) -> None:
        """Wait for more of a text, unless it has ended."""
        least, each, most = _GATHER_S
        time_s = _WHOLE_S if whole else min(most, max(least, each * self._engine.num_in_flight))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(inbox.ended.wait(), time_s)

    async def report(self) -> ReplicaReport:
        """How it is; who asks is there, so the replica stays."""
        from ray import serve

        self._heard = time.monotonic()
        stats = await self._engine.stats()
        return ReplicaReport(serve.get_replica_context().replica_tag, os.getpid(), stats)

    async def check_health(self) -> None:
        """Asked by Ray Serve, which puts another one in the place of a replica that raises.

        The first call waits for the model. Where that cannot be opened while the server itself
        comes up, it returns all the same, so that `opened` can say why.
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
