"""An `LLM` for those who do not wait: `AsyncLLM` for asyncio, `BackgroundLLM` for servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.llm.answer import Chunk, Completion, chunk_of
from trtla.llm.arguments import conversations, prompt_requests
from trtla.llm.engine_thread import EngineThread, Event, Receive
from trtla.llm.llm import LLM
from trtla.runtime.request import Request
from trtla.runtime.stats import ExecutorStats
from trtla.settings.arguments import arguments_of, keywords_of, later_arguments_of, typed_as
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ENGINE_OPTIONS, ExecutorOptions, OpenArguments
from trtla.settings.messages import Messages
from trtla.settings.sampling import SamplingParams

T = TypeVar("T")
State = Literal["loading", "ready", "failed", "stopped"]


_SETTINGS = (SamplingParams, DrafterSettings, DraftOptions)


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


class AsyncLLM:
    """An `LLM` whose texts are awaited: any number of tasks share its batch. A context manager.

        async with AsyncLLM("engine") as llm:
            async for chunk in llm.stream("Once upon a time"):
                print(chunk.text, end="")

    It is opened by `async with`, or by the first use; the event loop only reads what its thread
    decodes. A text ends at once when nobody waits for it any more: its task is cancelled, or its
    stream closed. What goes wrong is raised where it is awaited. It belongs to the event loop it
    was opened in, but any may close it; after `close` all use raises `TrtlaError`.
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
        self._opening: Future[LLM] | None = None
        self._closed = False

    async def open(self) -> None:
        """Open the model, if it is not open; what `LLM` raises is raised here."""
        await self._opened()

    async def _opened(self) -> LLM:
        loop = asyncio.get_running_loop()
        if self._opening is None and not self._closed:
            self._loop, self._preparing = loop, ThreadPoolExecutor(1, "trtla-prepare")
            self._opening = in_thread(self._new)
        if self._opening is not None and not self._closed:
            if self._loop is not loop:
                raise UsageError(
                    "the model was opened in another event loop", "open one in each, or stay in one"
                )
            llm = await asyncio.wrap_future(self._opening)
        if self._closed:
            raise TrtlaError("the model is closed", "open it again")
        return llm

    @arguments_of(LLM.stream, *_SETTINGS)
    async def stream(self, *prompts: Any, **how: Any) -> AsyncGenerator[Chunk, None]:
        """As `LLM.stream`, for `async for`; checks come with the first chunk.

        A loop that is left early ends the text, when its stream is closed: at once where no
        variable holds it, or by `contextlib.aclosing`.
        """
        llm = await self._opened()
        answers = await self._loop.run_in_executor(
            self._preparing, lambda: llm.answers_to(prompt_requests(*prompts, **how))
        )
        growing = {answer.request.request_id: answer for answer in answers}
        inbox: asyncio.Queue[Sequence[Event]] = asyncio.Queue()
        try:
            await self._opened()  # it may have been closed meanwhile
            requests = [answer.request for answer in answers]
            llm.executor.submit(requests, _receiver(self._loop, llm.executor, inbox, growing))
            while growing:
                for request_id, event in await inbox.get():
                    yield chunk_of(growing, request_id, _understood(event))
        finally:
            llm.executor.cancel(growing)

    @arguments_of(LLM.stream, *_SETTINGS)
    async def generate(self, *prompts: Any, **how: Any) -> list[Completion]:
        """As `LLM.generate`."""
        chunks = self.stream(*prompts, **how)
        done = [chunk.completion async for chunk in chunks if chunk.completion is not None]
        return sorted(done, key=attrgetter("index", "choice"))

    @later_arguments_of(LLM.stream, *_SETTINGS)
    async def chat(
        self, messages: Messages | Sequence[Messages], *more: Any, **how: Any
    ) -> list[Completion]:
        """As `LLM.chat`."""
        return await self.generate(conversations(messages), *more, **how)

    async def stats(self) -> ExecutorStats:
        """Counters over everything generated so far."""
        llm = await self._opened()
        return await asyncio.wrap_future(llm.executor.ask(lambda executor: executor.stats()))

    @property
    def llm(self) -> LLM:
        """The model itself, once it is open: its tokenizer, limits, description, `log_probs`.

        It may be used from any thread; what computes holds up the loop where it is called there.
        """
        if self._opening is None or not self._opening.done():
            raise TrtlaError("the model is not open", "await its open(), or use async with")
        return self._opening.result()

    async def close(self) -> None:
        """Free the model after the forward it is in; texts that have not ended raise
        `TrtlaError`."""
        self._closed = True
        if self._opening is not None:
            self._preparing.shutdown(wait=False)
            loop = asyncio.get_running_loop()  # the one it was opened in may be gone
            await asyncio.shield(loop.run_in_executor(None, _close, self._opening))

    async def __aenter__(self) -> AsyncLLM:
        try:
            await self.open()
        except BaseException:  # then nobody will leave the block
            self._closed = True
            if self._opening is not None:
                self._opening.add_done_callback(_close)
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _receiver(
    loop: asyncio.AbstractEventLoop,
    engine: EngineThread,
    inbox: asyncio.Queue[Sequence[Event]],
    request_ids: Iterable[int],
) -> Receive:
    """Hands events over to the loop; where that has been closed nobody waits any more."""

    def receive(events: Sequence[Event]) -> None:
        try:
            loop.call_soon_threadsafe(inbox.put_nowait, events)
        except RuntimeError:
            engine.cancel(tuple(request_ids))

    return receive


def _close(opening: Future[LLM]) -> None:
    if opening.exception() is None:
        opening.result().close()


def _understood(event: Any) -> Any:
    """What a step has raised, as an error of the model; all else as it is."""
    if isinstance(event, Exception) and not isinstance(event, TrtlaError):
        return TrtlaError(f"the model has failed: {sentence(event)}", "open it again")
    return event


@dataclass(slots=True)
class ReplicaCounts:
    """Of a model that runs in several processes."""

    running: int = 0
    """Replicas that answered when this was asked for."""
    reruns: int = 0
    """Times that a text went on elsewhere, since its replica was lost."""


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
        self._opening = in_thread(self._open)

    @property
    def llm(self) -> LLM:
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
