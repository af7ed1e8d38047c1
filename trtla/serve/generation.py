"""The served model on the event loop: texts in flight, and the requests that wait for them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from trtla.api.errors import ApiError, refused, too_busy, too_late, unavailable
from trtla.api.generation import Generation
from trtla.console import counted
from trtla.errors import as_trtla_error
from trtla.llm.answer import Answer, Chunk
from trtla.llm.async_engine import AsyncEngine
from trtla.llm.prompt import RequestMaker
from trtla.llm.reading import log_template_note
from trtla.llm.templates import TemplateProcess
from trtla.results.doubts import HeadDoubts
from trtla.runtime.request import Output
from trtla.serve.metrics import ServerMetrics
from trtla.settings.drafting import HEAD_PREFIX
from trtla.settings.serving import ServeSettings

T = TypeVar("T")

CHAT, TEXTS = "chat", "texts"
"""Lanes of requests that are being prepared."""


class AsyncGeneration(Generation):
    """The choices of one request, awaited on the event loop; arguments as in `Generation`."""

    def __init__(self, answers: Sequence[Answer], started: float, timeout_s: float) -> None:
        super().__init__(answers, started, timeout_s)
        self._latest: dict[int, float] = {}
        self._new: deque[tuple[int, Output | ApiError]] = deque()
        self._news = asyncio.Event()
        self._failure: ApiError | None = None
        """What the next call of `next` raises, behind the last chunks."""

    @property
    def ended(self) -> bool:
        return self._failure is None and super().ended

    def clock(self, request_id: int) -> tuple[float, float | None]:
        """Return seconds since the request arrived, and since this choice's last call, if any."""
        now, before = time.monotonic(), self._latest.get(request_id)
        self._latest[request_id] = now
        return now - self.started, None if before is None else now - before

    def put(self, request_id: int, event: Output | ApiError) -> None:
        self._new.append((request_id, event))
        self._news.set()

    def nudge(self) -> None:
        """Let `next` return even without news."""
        self._news.set()

    async def next(self) -> list[Chunk]:
        """Wait for new chunks and return them; empty after a nudge, and at the end."""
        if self._failure is not None:
            raise self._failure
        if self.ended:
            return []
        await self._news.wait()
        chunks: list[Chunk] = []
        while self._new:
            request_id, event = self._new.popleft()
            try:
                if isinstance(event, ApiError):
                    raise event
                chunks.append(self.add(request_id, event))
            except ApiError as error:
                if not chunks:
                    raise
                self._failure = error
                return chunks
        self._news.clear()
        return chunks


async def within(work: Awaitable[T], seconds: float) -> T:
    """Await work as `asyncio.wait_for` does, which before Python 3.12 forgets that it was cancelled
    if the work has just ended."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        task.cancel()


class ServedModel:
    """A model that is served, from loading to its end; its methods are for the event loop.

    Args:
        open_model: opens it, called in a thread of its own.
        settings: limits of the queue and of a request's time.
        metrics: counts outputs.
        log: takes sentences about failures.
        note: takes remarks.
    """

    def __init__(
        self,
        open_model: Callable[[], RequestMaker],
        settings: ServeSettings,
        metrics: ServerMetrics,
        log: Callable[[str], None],
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._open_model, self._metrics = open_model, metrics
        self._max_queue, self.timeout_s = settings.max_queue, settings.request_timeout
        self.engine = AsyncEngine(self._open, log)
        self.draining = False
        self._reserved = 0
        self._templates: TemplateProcess | None = None
        self._note, self._doubts = note, HeadDoubts()
        self._judging: asyncio.Task[None] | None = None

    def _open(self) -> RequestMaker:
        """Open the model; a process renders its template, which may not end."""
        llm = self._open_model()
        tokenizer = llm.tokenizer
        if tokenizer is not None and tokenizer.has_chat_template:
            self._templates = tokenizer.render_in_process(min(_RENDERING_S, self.timeout_s / 2))
            self.engine.lanes.submit(CHAT, partial(log_template_note, tokenizer))
        return llm

    def _put(
        self, generation: AsyncGeneration, id_: int, events: Sequence[Output | BaseException]
    ) -> None:
        outputs = [event for event in events if isinstance(event, Output)]
        if outputs:
            self._metrics.outputs(outputs, *generation.clock(id_))
            if outputs[-1].finish_reason is not None:
                self._judge_head(outputs[-1].stats.drafter)
        for event in events:
            generation.put(id_, event if isinstance(event, Output) else self._error(event))

    def _judge_head(self, drafters: str) -> None:
        """Note a head that is nearly never right, once one of its texts has ended."""
        names = drafters.split(",")
        heads = [name[len(HEAD_PREFIX) :] for name in names if name.startswith(HEAD_PREFIX)]
        waits = self._judging is not None and not self._judging.done()
        if self._doubts.watches(heads) and not waits:
            self._judging = asyncio.create_task(self._note_doubts())

    async def _note_doubts(self) -> None:
        with suppress(Exception):  # the model ends or has failed, which others report
            for doubt in self._doubts.new((await self.engine.stats()).heads):
                self._note(doubt)

    def _error(self, error: BaseException) -> ApiError:
        return refused(as_trtla_error(error)) if self.engine.failure is None else self.absence()

    def absence(self) -> ApiError:
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
        return self.engine.num_in_flight

    async def generate(
        self,
        prepare: Callable[[RequestMaker, float], list[Answer]],
        count: int,
        lane: str,
        whole: bool = False,
    ) -> AsyncGeneration:
        """Queue a request's texts; cancelling this call queues nothing.

        Args:
            prepare: makes its answers; called in a thread of its own, since prompts may be long.
            count: the number of answers.
            lane: requests of one lane are prepared one after another.
            whole: texts are only read at their ends.
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
            work = self.engine.lanes.done(lane, partial(prepare, llm, self.timeout_s))
            answers = await within(work, self.timeout_s)
            generation = AsyncGeneration(answers, started, self.timeout_s)
        except asyncio.TimeoutError:
            raise too_late(self.timeout_s) from None
        finally:
            self._reserved -= count
        if not self.ready:
            raise self.absence()
        self._metrics.prompts(generation.prompt_tokens)
        requests = (answer.request for answer in generation.answers)
        self.engine.submit(requests, partial(self._put, generation), whole)
        return generation

    def cancel(self, generation: AsyncGeneration) -> None:
        """End those of its texts that have not ended."""
        if left := self.engine.cancel(generation.request_ids):
            self._metrics.cancelled(left)

    async def stop(self) -> None:
        """End after the step that the model is in, and wait for it."""
        await self.engine.close(_LONGEST_STEP_S)
        if self._templates is not None:
            await asyncio.to_thread(self._templates.close)

    @property
    def is_preparing(self) -> bool:
        """True if a thread prepares a request, even one that is no longer wanted."""
        return self.engine.lanes.busy_s > 0

    @property
    def is_stuck(self) -> bool:
        """True if the preparation of a request takes longer than the request may."""
        return self.engine.lanes.busy_s > self.timeout_s


_LONGEST_STEP_S = 30.0
_RENDERING_S = 10.0  # for a conversation in the chat template
