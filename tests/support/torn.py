"""A model that is interrupted or that many threads use, and what it has to write."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import trtla
from tests.support.mixed import VOCAB, mixed_executor
from tests.support.toys import hash_scores, request, run, tokens_of, toy_executor
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
CHAIN = DrafterSettings(
    ("draft:toy", "lookahead", "ngram", "head:toy"), gamma=3, reset_in_between=False
)
PROMPTS = {"broken": [1, 2, 3, 1, 2], "other": [2, 1] * 20, "third": [3]}
SAMPLING = {
    "broken": SamplingParams(14, 0.7, seed=1),
    "other": SamplingParams(9, allotted_time_ms=600_000),
    "third": SamplingParams(7, 1.2, seed=4),
}


@pytest.fixture(scope="module")
def expected():
    """Each prompt decoded alone, without drafts."""
    texts = {}
    for name, prompt in PROMPTS.items():
        executor, _ = toy_executor(hash_scores(VOCAB), VOCAB, AUTOREGRESSIVE)
        asked = replace(request(prompt, 1), sampling=SAMPLING[name])
        texts[name] = tuple(tokens_of(run(executor, [asked])[0]))
    return texts


class Opened:
    """An `LLM` on a toy whose drafters are of all kinds, blocks being kept."""

    def __init__(self, patch: pytest.MonkeyPatch, *, ahead: bool = False) -> None:
        executor, self.model, self.group = mixed_executor(
            LookaheadConfig(3, 3, 2), batch=3, budget=24, max_reused_len=160, ahead=ahead
        )
        patch.setattr("trtla.llm.open.open_executor", lambda *_: executor)
        patch.setattr("trtla.llm.engine_thread._LOOK_EVERY_S", None)  # its lines are counted
        self.llm = LLM(SHIPPED, tokenizer_dir=None)
        self.llm.end_ids, self.executor = frozenset(), executor

    def stream(self, name, drafter=CHAIN, triple=None):
        return self.llm.stream([PROMPTS[name]], SAMPLING[name], triple, drafter=drafter)

    def before_forwards(self, work):
        """From now on this is done first in every forward."""
        forward = self.executor._stepper.forward

        def instead(feeds):
            work()
            return forward(feeds)

        def put(executor):
            executor._stepper.forward = instead

        self.llm.executor.call(put)

    def failing(self, error, times):
        """From now on so many forwards raise this."""
        left = [times]

        def fail():
            left[0] -= 1
            if left[0] >= 0:
                raise error

        self.before_forwards(fail)

    def settled(self, count=0):
        """Nothing is left of any request, and the next one is served."""
        wait_for(lambda: not self.llm.executor._texts)
        (done,) = self.llm.generate([[4, 4]], SamplingParams(2), drafter=NO_DRAFTER)
        assert len(done.output_ids) == 2
        for pool in (self.executor._cache.pool, self.group.cache.pool):
            assert pool.num_free == pool.num_blocks
        assert self.executor._scheduler.num_running == 0
        assert self.llm.stats().new_tokens >= count + 2


def wait_for(happened: Callable[[], object], seconds: float = 120.0) -> None:
    """Until something is so, however busy the machine is."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


class Gate:
    """Lets some forwards of an open model run; each further one first waits until something is so.

    Args:
        free: how many do not wait.
        until: what the others wait for.
    """

    def __init__(self, llm: LLM, free: int, until: Callable[[], object]) -> None:
        self.free, self._until, self.reached = free, until, threading.Event()
        """The last one is set when a forward waits."""
        stepper = llm._executor._stepper
        self._forward, stepper.forward = stepper.forward, self

    def __call__(self, feeds):
        if self.free <= 0:
            self.reached.set()
            wait_for(self._until)
        self.free -= 1
        return self._forward(feeds)


@contextmanager
def on_alarm(handle):
    """SIGALRM calls this meanwhile."""
    before = signal.signal(signal.SIGALRM, lambda *_: handle())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupt():
    raise KeyboardInterrupt


def rest(stream, got):
    """Read a stream to its end; its completion."""
    done = None
    for chunk in stream:
        got += chunk.token_ids
        done = chunk.completion
    return done


class Threads:
    """Threads that are all waited for; what one raises is raised here."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, work: Callable[..., object], *args: object) -> None:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._threads), "a thread hangs"
        if self.errors:
            raise self.errors[0]
