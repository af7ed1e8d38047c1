"""`AsyncLLM`: an `LLM` for asyncio, which decodes in a thread of its own beside the event loop."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.llm.answer import Chunk, Completion
from trtla.llm.engine_thread import EngineThread, Event
from trtla.llm.llm import LLM
from trtla.llm.prompt import conversations
from trtla.runtime.request import Output
from trtla.runtime.stats import ExecutorStats
from trtla.settings.arguments import keywords_of, named_arguments, typed_as
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ENGINE_OPTIONS, ExecutorOptions, OpenArguments
from trtla.settings.sampling import SamplingParams

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)
_LONGEST_STEP_S = 30.0
"""Waited for at most where the process ends and the model is still open."""


def _as(
    method: Callable[Concatenate[LLM, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[AsyncLLM, P], T]]:
    """Give a method the arguments of one of `LLM`, and refuse others."""

    def take(own: Callable[..., T]) -> Callable[Concatenate[AsyncLLM, P], T]:
        returned = signature(own).return_annotation
        own.__signature__ = signature(method).replace(return_annotation=returned)  # type: ignore[attr-defined]
        return named_arguments(SamplingParams, DrafterSettings)(own)

    return take


class _Inboxes:
    """Whom what a step brought is for: read on the event loop, filled from the engine's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Queue[Event]] = {}
        self.changed = asyncio.Event()
        """The engine's state is another than when it began."""

    def expect(self, request_ids: Iterable[int]) -> asyncio.Queue[Event]:
        """Where the events of these requests will come from now on."""
        inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._waiting.update(dict.fromkeys(request_ids, inbox))
        return inbox

    def leave(self, request_ids: Iterable[int]) -> None:
        """No event of these is wanted any more."""
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def post(self, engine: EngineThread, events: Sequence[Event]) -> None:
        """Hand over to the loop; where that has been closed nobody waits any more."""
        try:
            self._loop.call_soon_threadsafe(self._put, engine, events)
        except RuntimeError:
            if events and self._waiting:
                left, self._waiting = self._waiting, {}
                engine.cancel(left)

    def _put(self, engine: EngineThread, events: Sequence[Event]) -> None:
        if not events:
            self.changed.set()
            if engine.state in ("failed", "stopped"):
                events = [(request_id, _absence(engine)) for request_id in self._waiting]
        for request_id, event in events:
            if request_id in self._waiting:
                self._waiting[request_id].put_nowait((request_id, event))


def _absence(engine: EngineThread) -> TrtlaError:
    """Why there is no model any more."""
    failure = engine.failure
    if failure is None:
        return TrtlaError("the model is closed", "open it again")
    if isinstance(failure, TrtlaError):
        return type(failure)(failure.message, failure.hint)
    return TrtlaError(f"the model has failed: {sentence(failure)}", "open it again")


class AsyncLLM:
    """An `LLM` whose texts are awaited: any number of tasks share its batch. A context manager.

        async with AsyncLLM("engine") as llm:
            async for chunk in llm.stream("Once upon a time"):
                print(chunk.text, end="")

    It is opened by `async with`, or by the first use, in a thread that decodes for all; the event
    loop only reads what that brings. A text ends at once when nobody waits for it any more: its
    task is cancelled, or its stream closed. What goes wrong is raised where it is awaited. It
    belongs to the event loop it was opened in, but any may close it; after `close` all use raises
    `TrtlaError`.
    """

    @overload
    def __init__(self, model: str | Path, options: ExecutorOptions) -> None: ...
    @overload
    @typed_as(OpenArguments)
    def __init__(self) -> None: ...
    @keywords_of(ExecutorOptions, DraftOptions, DrafterSettings)
    def __init__(
        self, model: str | Path, options: ExecutorOptions | None = None, **settings: Any
    ) -> None:
        """Arguments are those of `LLM`; the model is opened later."""
        self._new: Callable[[], LLM] = partial(
            LLM, model, replace(options or ENGINE_OPTIONS, **settings)
        )
        self._engine: EngineThread | None = None
        self._closed = False

    async def open(self) -> None:
        """Open the model, if it is not open; what `LLM` raises is raised here."""
        await self._opened()

    async def _opened(self) -> EngineThread:
        """The thread, its model being open."""
        if self._closed:
            raise TrtlaError("the model is closed", "open it again")
        if self._engine is None:
            self._begin()
        assert self._engine is not None
        if self._loop is not asyncio.get_running_loop():
            raise UsageError(
                "the model was opened in another event loop", "open one in each, or stay in one"
            )
        while self._engine.state == "loading":
            await self._inboxes.changed.wait()
        if self._closed or self._engine.state != "ready":
            raise _absence(self._engine)
        return self._engine

    def _begin(self) -> None:
        self._loop, self._inboxes = asyncio.get_running_loop(), _Inboxes()
        self._preparing = ThreadPoolExecutor(1, "trtla-prepare")
        self._engine = engine = EngineThread(
            self._new, lambda events: inboxes.post(engine, events), _log.warning
        )
        inboxes = self._inboxes
        # Not a method of its own: what is left open is closed with it, or when the process ends.
        weakref.finalize(self, engine.stop, _LONGEST_STEP_S)
        engine.start()

    @_as(LLM.stream)
    async def stream(self, *prompts: Any, **how: Any) -> AsyncGenerator[Chunk, None]:
        """As `LLM.stream`, for `async for`; checks come with the first chunk.

        A loop that is left early ends the text, when its stream is closed: at once where no
        variable holds it, or by `contextlib.aclosing`.
        """
        engine = await self._opened()
        begin = partial(engine.llm._answers, *prompts, **how)
        answers = await self._loop.run_in_executor(self._preparing, begin)
        growing = {answer.request.request_id: answer for answer in answers}
        inbox = self._inboxes.expect(growing)
        try:
            await self._opened()  # it may have ended meanwhile
            engine.submit(answer.request for answer in answers)
            while growing:
                request_id, event = await inbox.get()
                output = _output(event)
                answer = growing[request_id]
                if output.start < answer.length:
                    continue  # it comes once more: a step was interrupted
                if output.finish_reason is not None:
                    self._inboxes.leave([request_id])
                    del growing[request_id]
                if output.error is not None:
                    raise output.error
                yield answer.add(output)
        finally:
            self._leave(engine, growing)

    def _leave(self, engine: EngineThread, request_ids: Collection[int]) -> None:
        self._inboxes.leave(request_ids)
        if request_ids and engine.state == "ready":
            engine.cancel(request_ids)

    @_as(LLM.generate)
    async def generate(self, *prompts: Any, **how: Any) -> list[Completion]:
        """As `LLM.generate`."""
        return await self._whole(self.stream(*prompts, **how))

    @_as(LLM.chat)
    async def chat(self, messages: Any, *given: Any, **how: Any) -> list[Completion]:
        """As `LLM.chat`."""
        return await self._whole(self.stream(conversations(messages), *given, **how))

    async def _whole(self, chunks: AsyncGenerator[Chunk, None]) -> list[Completion]:
        done = [chunk.completion async for chunk in chunks if chunk.completion is not None]
        return sorted(done, key=attrgetter("index", "choice"))

    async def stats(self) -> ExecutorStats:
        """Counters over everything generated so far."""
        engine = await self._opened()
        return await asyncio.wrap_future(engine.stats())

    @property
    def llm(self) -> LLM:
        """The model itself, once it is open: its tokenizer, limits, description, `log_probs`.

        It may be used from any thread; what computes holds up the loop where it is called there.

        Raises:
            TrtlaError: it is not open.
        """
        if self._engine is None:
            raise TrtlaError("the model is not open", "await its open(), or use async with")
        return self._engine.llm

    async def close(self) -> None:
        """Free the model after the step it is in; texts that have not ended raise `TrtlaError`."""
        self._closed = True
        if self._engine is not None:
            self._preparing.shutdown(wait=False)
            loop = asyncio.get_running_loop()  # the one it was opened in may be gone
            await asyncio.shield(loop.run_in_executor(None, self._engine.stop))

    async def __aenter__(self) -> AsyncLLM:
        try:
            await self.open()
        except BaseException:  # then nobody will leave the block
            self._closed = True
            if self._engine is not None:
                self._engine.stop(0)
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _output(event: Output | TrtlaError) -> Output:
    if isinstance(event, TrtlaError):
        raise event
    return event
