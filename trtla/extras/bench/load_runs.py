"""Runs of load: the times of requests, their answers, and their texts once more alone.

`LoadResult` holds the answers so far at any time, so that an interrupted run has results.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, product
from types import FrameType
from typing import Any

from trtla.console import Progress, Stages, silent
from trtla.extras.bench.documents import LoadCheck
from trtla.extras.bench.load_client import Client, LoadRequest, Server, StreamedAnswer
from trtla.results.metrics import first_difference
from trtla.settings.messages import Asking
from trtla.settings.sampling import Filters, SamplingParams

Send = Callable[[int], Awaitable[None]]
"""Sends the request with this index and waits for its answer."""


@dataclass(frozen=True, slots=True)
class Load:
    """The arrival of requests: a number at a time, or a number a second at random times."""

    concurrency: int | None = None
    request_rate: float | None = None
    """Infinite: all at once."""

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} at a time"
        return "all at once" if self.request_rate == math.inf else f"{self.request_rate:g} a second"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """A test of a server: every load with every set of filters is a run."""

    server: Server
    loads: tuple[Load, ...]
    filters: tuple[Filters, ...]
    prompts: tuple[str, ...]
    asking: Asking
    requests: int
    """Requests of a run."""
    sampling: SamplingParams
    """Settings of all requests, but for the filters; request i has seed + i."""
    arrivals_seed: int
    check_texts: bool = False

    def runs(self, chat: bool) -> Iterator[LoadRun]:
        """Yield the runs, each with the next prompts, since a server may keep texts."""
        numbered = enumerate(cycle(self.prompts))
        for filters, load in product(self.filters, self.loads):
            texts = islice(numbered, self.requests)
            yield LoadRun(load, filters, [self._request(filters, *text, chat) for text in texts])

    def warm_up(self, chat: bool) -> LoadRequest:
        """Return an uncounted request: half a prompt, so that the server keeps no text of a run."""
        first = self.prompts[0]
        return self._request(self.filters[0], 0, first[len(first) // 2 :], chat)

    def _request(self, filters: Filters, index: int, text: str, chat: bool) -> LoadRequest:
        seed = self.sampling.seed + index
        sampling = replace(self.sampling, **filters._asdict(), seed=seed)
        return LoadRequest(self.asking.prompt(text, chat=chat), sampling)


@dataclass(slots=True)
class LoadRun:
    """One load, and the answers to its requests so far."""

    load: Load
    filters: Filters
    requests: Sequence[LoadRequest]
    start: float = 0.0
    answers: dict[int, StreamedAnswer] = field(default_factory=dict)
    """Answers by the request's index, in the order in which they ended."""

    @property
    def duration_s(self) -> float:
        """Seconds from the first request to the end of the last answer."""
        ends = (answer.closed for answer in self.answers.values())
        return max(ends, default=self.start) - self.start


@dataclass(slots=True)
class LoadResult:
    """The runs so far, and the check of their texts."""

    server: Server
    runs: list[LoadRun] = field(default_factory=list)
    checked: LoadCheck | None = None
    interrupted: bool = False


def measure(
    test: LoadTest,
    on_note: Callable[[str], None],
    on_run: Callable[[LoadRun], None],
    stages: Stages = silent,
) -> LoadResult:
    """Run every load; Ctrl-C ends the test with the runs so far."""
    done = LoadResult(test.server)

    async def work() -> None:
        with _interrupting(done):
            await _measure(test, done, on_note, on_run, stages)

    try:
        asyncio.run(work())
    except asyncio.CancelledError:
        if not done.runs:
            raise KeyboardInterrupt from None
    return done


@contextmanager
def _interrupting(done: LoadResult) -> Iterator[None]:
    """Make Ctrl-C cancel the running task: an error raised anywhere in the event loop gets lost."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if done.interrupted and callable(before):
            before(number, frame)
        done.interrupted = True
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _measure(
    test: LoadTest,
    done: LoadResult,
    on_note: Callable[[str], None],
    on_run: Callable[[LoadRun], None],
    stages: Stages,
) -> None:
    async with aclosing(Client(test.server)) as client:
        await client.look()
        chat = client.server.endpoint == "chat"
        warm = await client.warm_up(test.warm_up(chat))
        done.server = client.server
        if warm.usage is None:
            refused = "" if client.server.usage else " (it refuses stream_options)"
            on_note(f"the server reports no usage{refused}: a chunk is counted as a token")
        if len(test.loads) * len(test.filters) * test.requests > len(test.prompts):
            on_note("prompts recur, and a server may keep what it read and wrote: see docs/load.md")
        if test.requests < max(load.concurrency or 0 for load in test.loads):
            many = "1 request" if test.requests == 1 else f"{test.requests} requests"
            on_note(f"fewer are at a time than --concurrency: {many} a run; use --num-prompts")
        for run in test.runs(chat):
            done.runs.append(run)
            with stages(str(run.load), "requests") as progress:
                await _run(client, run, test.arrivals_seed, progress)
            on_run(run)
        if test.check_texts:
            with stages("texts alone", "requests") as progress:
                await _check(client, done, progress)


async def _run(client: Client, run: LoadRun, arrivals_seed: int, progress: Progress) -> None:
    async def send(index: int) -> None:
        run.answers[index] = await client.ask(run.requests[index])
        progress(len(run.answers), len(run.requests))

    run.start = time.perf_counter()
    if run.load.request_rate is None:
        await _in_turn(send, len(run.requests), run.load.concurrency or 1)
    else:
        times = arrivals(len(run.requests), run.load.request_rate, arrivals_seed)
        await _at(send, [run.start + at for at in times])


async def _in_turn(send: Send, requests: int, concurrency: int) -> None:
    """Keep this many requests in flight: each answer lets the next request go."""
    waiting = iter(range(requests))

    async def work() -> None:
        for index in waiting:
            await send(index)

    await asyncio.gather(*(work() for _ in range(min(concurrency, requests))))


async def _at(send: Send, times: Sequence[float]) -> None:
    """Send each request at its time, without waiting for answers."""

    async def wait(index: int, at: float) -> None:
        await asyncio.sleep(at - time.perf_counter())
        await send(index)

    await asyncio.gather(*(wait(index, at) for index, at in enumerate(times)))


def arrivals(requests: int, rate: float, seed: int) -> list[float]:
    """Draw the arrival times of a Poisson process in seconds; the first is 0."""
    draw, times, at = random.Random(seed), [], 0.0
    for _ in range(requests):
        times.append(at)
        at += draw.expovariate(rate) if rate < math.inf else 0.0
    return times


async def _check(client: Client, done: LoadResult, progress: Progress) -> None:
    """Send every distinct request alone, and compare its texts under load with that answer."""
    under_load: dict[tuple[Any, ...], list[tuple[str, LoadRequest, StreamedAnswer]]] = {}
    for run in done.runs:
        for index, answer in sorted(run.answers.items()):
            if answer.error is None:
                request = run.requests[index]
                name = f"request {index} of {run.load}"
                under_load.setdefault(request.key, []).append((name, request, answer))
    checked: dict[str, Any] = {"texts": 0, "equal": 0, "first": None, "failed": None}
    done.checked = LoadCheck(**checked)
    for number, group in enumerate(under_load.values(), 1):
        alone = await client.ask(group[0][1])
        if alone.error is not None:
            checked["failed"] = checked["failed"] or f"{group[0][0]}: {alone.error}"
        else:
            for name, _, answer in group:
                at = first_difference(answer.text, alone.text)
                checked["texts"] += 1
                checked["equal"] += at is None
                if at is not None:
                    checked["first"] = checked["first"] or f"{name} differs at character {at}"
        done.checked = LoadCheck(**checked)
        progress(number, len(under_load))
