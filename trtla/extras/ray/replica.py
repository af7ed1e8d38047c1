"""A replica: a model in a process of Ray Serve, which decodes one text a call for the server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Thread

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.formats.engine import model_digest
from trtla.llm.decoder import Event, refusal
from trtla.llm.llm import LLM
from trtla.llm.text_stream import StopStrings
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats

_GATHER_S = 0.02
"""Steps of a text that come within this time travel together: each message costs some work."""
LEASE_S = 60.0
"""Replicas that hear from their server no more delete their application after so long."""


class Replica:
    """The deployment's class: an open model, which has the digest that the server has read."""

    def __init__(self, app: str, open_model: Callable[[], LLM], digest: str) -> None:
        self._app, self._ids = app, count()
        self._heard: float | None = None
        self._llm = open_model()
        self._llm.executor.on_failure = _end
        if model_digest(self._llm.engine) != digest:
            raise UsageError(
                f"{self._llm.engine.path} holds another model than when the server began",
                "restart the server, or give it back its model",
            )

    def opened(self) -> tuple[ExecutorLimits, str]:
        """Return the model's limits and description."""
        return self._llm.limits, self._llm.description

    async def stream(
        self, request: Request, whole: bool = False, shown: Mapping[str, str] | None = None
    ) -> AsyncIterator[list[Output]]:
        """Yield the outputs of one text, which may have begun elsewhere.

        Args:
            request: the text's, without what cannot be sent.
            whole: the text is only read at its end.
            shown: control tokens that its stop strings may have.
        """
        llm, arrived = self._llm, asyncio.Queue[Event]()
        local, loop = replace(request, request_id=next(self._ids)), asyncio.get_running_loop()
        try:
            local = await asyncio.to_thread(self._restored, local, shown)
        except UsageError as error:
            yield [refusal(local, error)]
            return

        def receive(events: Sequence[Event]) -> None:
            for event in events:
                loop.call_soon_threadsafe(arrived.put_nowait, event)

        llm.executor.submit([local], receive, whole)
        ended = False
        try:
            while not ended:
                outputs = [_output(await arrived.get())]
                if outputs[0].finish_reason is None:
                    await asyncio.sleep(_GATHER_S)
                while not arrived.empty():
                    outputs.append(_output(arrived.get_nowait()))
                ended = outputs[-1].finish_reason is not None
                yield outputs
        finally:
            llm.executor.cancel([local.request_id])

    def _restored(self, request: Request, shown: Mapping[str, str] | None) -> Request:
        """Return a request with what cannot be sent: its check of stop strings, and its grammar."""
        start = self._llm.grammar_start(request.sampling, request.label)
        stop, check = request.sampling.stop, None
        if stop and self._llm.tokenizer is not None:
            stream = partial(self._llm.tokenizer.stream, request.input_ids, stop, shown)
            check = StopStrings(stream, shown)
        restored = replace(request, grammar=start, stop_check=check)
        self._llm.limits.check(restored)  # it comes from another process
        return restored

    async def stats(self) -> ExecutorStats:
        """Report the counters; the call also shows that the server is alive."""
        self._heard = time.monotonic()
        return await asyncio.wrap_future(self._llm.executor.stats_later())

    def check_health(self) -> None:
        """Delete the application `app` of a server that is gone; Ray Serve calls this."""
        from ray import serve

        if self._heard is not None and time.monotonic() - self._heard > LEASE_S:
            self._heard = None
            Thread(target=serve.delete, args=(self._app,), daemon=True).start()


def _output(event: Event) -> Output:
    """Prepare an output for sending: only the last one brings the counters, which grow."""
    _, output = event
    if isinstance(output, BaseException):
        raise TrtlaError(sentence(output))
    return output if output.finish_reason else replace(output, stats=RequestStats())


def _end(error: BaseException) -> None:
    """End a process whose model has failed: its texts continue in other replicas."""
    print(f"the model has failed: {sentence(error)}", flush=True)
    os._exit(1)
