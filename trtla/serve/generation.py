"""The model on the event loop's side: texts that are in flight, and who waits for which of them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from trtla.api.errors import ApiError, refused, too_busy, too_late, unavailable
from trtla.api.generation import Generation
from trtla.console import counted
from trtla.errors import as_trtla_error
from trtla.llm.answer import Answer, Chunk
from trtla.llm.async_llm import BackgroundLLM
from trtla.llm.engine_thread import Event
from trtla.llm.prompt import RequestMaker
from trtla.llm.templates import TemplateProcess
from trtla.runtime.request import Output
from trtla.serve.metrics import ServerMetrics
from trtla.settings.serving import ServeSettings

if TYPE_CHECKING:
    from trtla.replicas.engine import ReplicaEngine


ServedEngine: TypeAlias = "BackgroundLLM | ReplicaEngine"
NewEngine = Callable[[Callable[[Sequence[Event]], None], Callable[[str], None]], ServedEngine]
"""Makes an engine from two callbacks: one takes its events, the other sentences for the log."""


T = TypeVar("T")
CHAT, TEXTS = "chat", "texts"
"""Lanes of requests that are being made ready."""


class Live(Generation):
    """The choices of one request, as the event loop reads them; arguments as of `Generation`."""

    def __init__(self, answers: Sequence[Answer], started: float, timeout_s: float) -> None:
        super().__init__(answers, started, timeout_s)
        self._latest: dict[int, float] = {}
        self._new: deque[tuple[int, Output | ApiError]] = deque()
        self._news = asyncio.Event()

    def clock(self, request_id: int) -> tuple[float, float | None]:
        """Seconds since the request came, and since the last call for this choice, if any."""
        now, before = time.monotonic(), self._latest.get(request_id)
        self._latest[request_id] = now
        return now - self.started, None if before is None else now - before

    def put(self, request_id: int, what: Output | ApiError) -> None:
        self._new.append((request_id, what))
        self._news.set()

    def nudge(self) -> None:
        """Let `next` return, whether something came or not."""
        self._news.set()

    async def next(self) -> list[Chunk]:
        """What came since the last call, waiting for it; empty after a nudge, and at the end."""
        if self.ended:
            return []
        await self._news.wait()
        chunks: list[Chunk] = []
        while self._new:
            request_id, what = self._new[0]
            if isinstance(what, ApiError) and chunks:
                return chunks  # it is raised by the next call
            self._new.popleft()
            if isinstance(what, ApiError):
                raise what
            chunks.append(self.add(request_id, what))
        self._news.clear()
        return chunks


class ServedModel:
    """A model that is served, from its loading to its end.

    Args:
        new_engine: makes what opens it and decodes.
        loop: the event loop on which all else here is called.
        settings: most texts that wait for a place, and how long a request may take.
        metrics: counts.
        log: takes sentences about what goes wrong.
    """

    def __init__(
        self,
        new_engine: NewEngine,
        loop: asyncio.AbstractEventLoop,
        settings: ServeSettings,
        metrics: ServerMetrics,
        log: Callable[[str], None],
    ) -> None:
        self._loop, self._metrics = loop, metrics
        self._max_queue, self.timeout_s = settings.max_queue, settings.request_timeout
        self.engine = new_engine(self._post, log)
        self.draining = False
        self.changed = asyncio.Event()
        """The thread's state is another than when it began."""
        self._waiting: dict[int, Live] = {}
        self._reserved = 0
        self._preparing = Preparing()
        self._templates: TemplateProcess | None = None

    def _post(self, events: Sequence[Event]) -> None:
        """From the engine's thread to the loop, once a step."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: Sequence[Event]) -> None:
        for request_id, event in events:
            generation = self._waiting.get(request_id)
            if generation is None:
                continue
            if isinstance(event, BaseException):
                generation.put(request_id, refused(as_trtla_error(event)))
                del self._waiting[request_id]
                continue
            self._metrics.output(event, *generation.clock(request_id))
            generation.put(request_id, event)
            if event.finish_reason is not None:
                del self._waiting[request_id]
        if not events:
            self.changed.set()
            self._set_up()
            self._release_all()

    def _set_up(self) -> None:
        """Once there is a tokenizer: its template is a program of the model's, and may not end."""
        if self.engine.state != "ready" or self._templates is not None:
            return
        tokenizer = self.engine.llm.tokenizer
        if tokenizer is not None:
            self._templates = apart = tokenizer.render_apart(min(_RENDERING_S, self.timeout_s / 2))

            def start() -> None:
                if tokenizer.has_chat_template:
                    apart.start()

            self._preparing.submit(CHAT, start)

    def _release_all(self) -> None:
        if self.engine.state in ("failed", "stopped"):
            for request_id, generation in self._waiting.items():
                generation.put(request_id, self.absence())
            self._waiting.clear()

    def absence(self) -> ApiError:
        if self.engine.state == "loading":
            return unavailable("the model is loading; ask again later", "loading")
        if self.engine.state in ("ready", "stopped"):
            return unavailable("the server is ending; ask another one", "shutting_down")
        return unavailable("the model has failed; see the server's log", "engine_failed")

    @property
    def ready(self) -> bool:
        return self.engine.state == "ready" and not self.draining

    @property
    def llm(self) -> RequestMaker:
        if not self.ready:
            raise self.absence()
        return self.engine.llm

    @property
    def num_in_flight(self) -> int:
        return len(self._waiting)

    async def generate(
        self,
        prepare: Callable[[RequestMaker, float], list[Answer]],
        count: int,
        lane: str,
        whole: bool = False,
    ) -> Live:
        """Queue what a request asks for; where this is cancelled, nothing is.

        Args:
            prepare: makes its answers; called in a thread of its own, since prompts may be long.
            count: how many answers that are.
            lane: requests of one lane are made ready one after another.
            whole: nobody reads them before their ends.
        """
        llm = self.llm
        room = llm.limits.max_batch_size + self._max_queue
        taken = self.num_in_flight + self._reserved
        if count > room:
            raise ApiError(
                400,
                f"the request asks for {counted(count, 'text')}, and batch and queue hold {room}; "
                "ask for fewer, or start the server with a larger --max-queue",
                "n",
            )
        if taken + count > room:
            raise too_busy(max(0, taken - llm.limits.max_batch_size))
        self._reserved += count
        try:
            started = time.monotonic()
            work = self._preparing.submit(lane, partial(prepare, llm, self.timeout_s))
            answers = await asyncio.wait_for(asyncio.wrap_future(work), self.timeout_s)
            generation = Live(answers, started, self.timeout_s)
        except asyncio.TimeoutError:
            raise too_late(self.timeout_s) from None
        finally:
            self._reserved -= count
        if not self.ready:
            raise self.absence()
        for request_id in generation.request_ids:
            self._waiting[request_id] = generation
        self._metrics.prompts(generation.prompt_tokens)
        self.engine.submit((answer.request for answer in generation.answers), whole)
        return generation

    async def aside(self, work: Callable[[], T]) -> T:
        """Have work done in a thread, after other such work."""
        return await asyncio.wrap_future(self._preparing.submit("aside", work))

    def cancel(self, generation: Live) -> None:
        """Nobody wants its texts any more; does nothing to those that have ended."""
        left = [one for one in generation.request_ids if self._waiting.pop(one, None)]
        if left:
            self._metrics.cancelled(len(left))
            self.engine.cancel(left)

    def stop(self) -> None:
        """End the thread after its step; waits for that."""
        self.engine.stop(_LONGEST_STEP_S)
        self._preparing.stop()
        if self._templates is not None:
            self._templates.close()

    @property
    def is_preparing(self) -> bool:
        """Whether a thread makes a request ready, be it one that nobody waits for any more."""
        return self._preparing.busy_s > 0

    @property
    def is_stuck(self) -> bool:
        """Whether a request is being made ready for longer than it may take."""
        return self._preparing.busy_s > self.timeout_s


_LONGEST_STEP_S = 30.0
_RENDERING_S = 10.0  # for a conversation in the chat template


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

    @property
    def busy_s(self) -> float:
        """For how long the oldest work that has begun is being done; 0: none is."""
        begun = [lane.began for lane in self._lanes.values() if lane.began is not None]
        return time.monotonic() - min(begun) if begun else 0.0

    def stop(self) -> None:
        """Let the threads end after what they are doing."""
        for lane in self._lanes.values():
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
