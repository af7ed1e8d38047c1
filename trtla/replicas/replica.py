"""A replica: a model in a process of Ray Serve, asked by the server for one text a call."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import count
from threading import Thread

from trtla.errors import TrtlaError
from trtla.llm.engine_thread import EngineThread, Event
from trtla.llm.llm import LLM
from trtla.replicas.wire import Opened, Report, light, plain, unpacked
from trtla.runtime.request import Output, Request

_GATHER_S = (0.02, 0.01, 0.1)
"""Steps of a text that come within a time travel together, since each journey costs some work: at
least the first, the second for each text that is in flight here, at most the third."""
_WHOLE_S = 1.0
"""That time for texts that nobody reads before their ends: what goes on elsewhere, if need be."""
LEASE_S = 60.0
"""Replicas that no server has spoken to for so long end themselves, and all of their kind."""


class ReplicaLost(Exception):
    """The model here has failed, which is not the request's fault."""


class _Inbox:
    """What the model brought for one text, and has not gone out yet."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.error: TrtlaError | None = None
        self.news = asyncio.Event()
        self.ended = asyncio.Event()

    def put(self, event: Output | TrtlaError) -> None:
        """Take what came."""
        if isinstance(event, TrtlaError):
            self.error = event
        else:
            self.outputs.append(light(event))
        if isinstance(event, TrtlaError) or event.finish_reason is not None:
            self.ended.set()
        self.news.set()

    def take(self) -> list[Output]:
        """All that came since the last call."""
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
        self._inboxes: dict[int, _Inbox] = {}
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._heard: float | None = None  # from the opening on
        self._engine = EngineThread(open_model, self._post, print)
        self._start()

    def _start(self) -> None:
        self._loop = asyncio.get_event_loop()
        self._engine.start()

    def _post(self, events: Sequence[Event]) -> None:
        self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: Sequence[Event]) -> None:
        for request_id, event in events:
            if request_id in self._inboxes:
                self._inboxes[request_id].put(event)
        if not events:
            self._changed.set()
            if self._engine.state in ("failed", "stopped"):
                for inbox in self._inboxes.values():
                    inbox.news.set()

    async def opened(self) -> Opened | TrtlaError:
        """The model, when it is open, or why it cannot be."""
        await self._changed.wait()
        if self._engine.failure is not None:
            return plain(self._engine.failure)
        llm = self._engine.llm
        return Opened(llm.limits, llm.description)

    async def stream(
        self, request: Request, whole: bool = False
    ) -> AsyncIterator[list[Output] | TrtlaError]:
        """What the steps of one text bring; an error of the text's own is the last.

        Raises:
            ReplicaLost: the model has failed.
        """
        if self._engine.state != "ready":
            raise ReplicaLost(f"the model is {self._engine.state}")
        own = unpacked(request, next(self._ids), self._engine.llm.tokenizer)
        inbox = self._inboxes[own.request_id] = _Inbox()
        ended = False
        self._engine.submit([own])
        try:
            while not ended:
                await inbox.news.wait()
                outputs = inbox.take()
                ended = inbox.error is not None or any(one.finish_reason for one in outputs)
                if outputs:
                    yield outputs
                if inbox.error is not None:
                    yield plain(inbox.error)
                elif not outputs and self._engine.state != "ready":
                    raise ReplicaLost(f"the model is {self._engine.state}")
                elif not ended:
                    await self._gather(inbox, whole)
        finally:
            del self._inboxes[own.request_id]
            if not ended:
                self._engine.cancel([own.request_id])

    async def _gather(self, inbox: _Inbox, whole: bool) -> None:
        """Wait for more of a text, unless it has ended."""
        least, each, most = _GATHER_S
        time_s = _WHOLE_S if whole else min(most, max(least, each * len(self._inboxes)))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(inbox.ended.wait(), time_s)

    async def report(self) -> Report:
        """How it is; who asks is there, so the replica stays."""
        from ray import serve

        self._heard = time.monotonic()
        stats = await asyncio.wrap_future(self._engine.stats())
        return Report(serve.get_replica_context().replica_tag, os.getpid(), stats)

    async def check_health(self) -> None:
        """Asked by Ray Serve, which puts another one in the place of a replica that raises.

        The first call waits for the model, and returns also where that cannot be opened, so that
        `opened` can say why.

        Raises:
            ReplicaLost: the model has failed.
        """
        if self._heard is None:
            await self._changed.wait()
            self._heard = time.monotonic()
        elif self._engine.state == "failed":
            raise ReplicaLost("the model has failed")
        elif time.monotonic() - self._heard > LEASE_S:
            self._heard = time.monotonic()
            Thread(target=_end, args=(self._app,), daemon=True).start()


def _end(app: str) -> None:
    """The server is gone: end the application."""
    from ray import serve

    serve.delete(app)
