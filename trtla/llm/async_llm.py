"""`AsyncLLM`: an `LLM` with awaitable texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, cast, overload

from trtla.errors import TrtlaError, sentence
from trtla.formats.model import Model
from trtla.llm.answer import Chunk, Completion, chunk_of
from trtla.llm.arguments import conversations, prompt_requests
from trtla.llm.async_engine import AsyncEngine
from trtla.llm.llm import LLM
from trtla.settings.arguments import arguments_of, keywords_of, later_arguments_of, typed_as
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ENGINE_OPTIONS, ExecutorOptions, OpenArguments
from trtla.settings.messages import Messages
from trtla.settings.sampling import SamplingParams

_SETTINGS = (SamplingParams, DrafterSettings, DraftOptions)
_INSIDE = {"begin", "cancel", "changed", "failure", "lanes", "num_in_flight", "state", "submit"}
"""Attributes of an `AsyncLLM` for the rest of the package."""


class AsyncLLM(AsyncEngine):
    """An `LLM` with awaitable texts: any number of tasks share its batch. A context manager.

        async with AsyncLLM("engine") as llm:
            async for chunk in llm.stream("Once upon a time"):
                print(chunk.text, end="")

    It is opened by `async with`, or by the first use; the event loop only reads what its thread
    decodes. A text ends at once when its task is cancelled or its stream closed. Errors are raised
    where the result is awaited. The model belongs to the event loop it was opened in, but any loop
    may close it; after `close` all use raises `TrtlaError`.
    """

    @overload
    def __init__(self, model: str | Path | Model, options: ExecutorOptions) -> None: ...
    @overload
    @typed_as(OpenArguments)
    def __init__(self) -> None: ...
    @keywords_of(ExecutorOptions, DraftOptions, DrafterSettings)
    def __init__(
        self, model: str | Path | Model, options: ExecutorOptions | None = None, **settings: Any
    ) -> None:
        """Take the arguments of `LLM`; the model is opened later."""
        super().__init__(partial(LLM, model, replace(options or ENGINE_OPTIONS, **settings)))

    @arguments_of(LLM.stream, *_SETTINGS)
    async def stream(self, *prompts: Any, **how: Any) -> AsyncGenerator[Chunk, None]:
        """Like `LLM.stream`, for `async for`; checks come with the first chunk.

        Leaving a loop early ends the text when its stream is closed: at once if no variable holds
        it, or by `contextlib.aclosing`.
        """
        async with aclosing(self._chunks(prompts, how)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _chunks(
        self, prompts: Any, how: dict[str, Any], *, whole: bool = False
    ) -> AsyncGenerator[Chunk, None]:
        await self.open()
        answers = await self.lanes.done(
            "texts", lambda: self.llm.answers_to(prompt_requests(*prompts, **how))
        )
        growing = {answer.request.request_id: answer for answer in answers}
        inbox: asyncio.Queue[tuple[int, Sequence[Any]]] = asyncio.Queue()
        try:
            await self.open()  # it may be closed by now
            requests = [answer.request for answer in answers]
            self.submit(requests, lambda *events: inbox.put_nowait(events), whole)
            while growing:
                request_id, events = await inbox.get()
                for event in events:
                    yield chunk_of(growing, request_id, _understood(event))
        finally:
            self.cancel(growing)

    @arguments_of(LLM.stream, *_SETTINGS)
    async def generate(self, *prompts: Any, **how: Any) -> list[Completion]:
        """Like `LLM.generate`."""
        chunks = self._chunks(prompts, how, whole=True)
        done = [chunk.completion async for chunk in chunks if chunk.completion is not None]
        return sorted(done, key=attrgetter("index", "choice"))

    @later_arguments_of(LLM.stream, *_SETTINGS)
    async def chat(
        self, messages: Messages | Sequence[Messages], *more: Any, **how: Any
    ) -> list[Completion]:
        """Like `LLM.chat`."""
        return await self.generate(conversations(messages), *more, **how)

    @property
    def llm(self) -> LLM:
        """The model itself, once it is open: its tokenizer, limits, description, `log_probs`.

        It may be used from any thread; computing calls block the event loop if called there.
        """
        return cast(LLM, super().llm)

    def __dir__(self) -> list[str]:
        """List the public attributes; the rest is for other parts of the package."""
        return [name for name in super().__dir__() if name not in _INSIDE]

    async def __aenter__(self) -> AsyncLLM:
        try:
            await self.open()
        except BaseException:  # the block is not entered, so it is not left either
            self._close_later()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _understood(event: Any) -> Any:
    """Convert an exception of a step to an error of the model; pass other events on."""
    if isinstance(event, Exception) and not isinstance(event, TrtlaError):
        return TrtlaError(f"the model has failed: {sentence(event)}", "open it again")
    return event
