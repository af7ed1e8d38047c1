"""One `LLM` used from many threads, by finalisers, while it is closed, and after a fork."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import trtla
from tests.support.examples import some
from tests.support.interrupts import Lines, no_collection, once_each
from tests.support.torn import (
    PROMPTS,
    Opened,
    Threads,
    expected,
    interrupt,
    on_alarm,
    rest,
    wait_for,
)
from tests.support.toys import hash_scores, request, toy_executor
from trtla import LLM, LookaheadConfig, SamplingParams, TrtlaError
from trtla.llm import answer, engine_thread, llm
from trtla.runtime.request import DraftRecorder
from trtla.runtime.threads import num_threads, set_threads
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
PLAIN = LookaheadConfig(1, 1, 0)
TEXTS = [
    "def add(a, b):\n    return",
    "Once upon a time",
    "import os\nimport sys\n",
    "for i in range(10):\n    print(",
]
DRAFTERS = [None, NO_DRAFTER, DrafterSettings(("ngram",)), DrafterSettings(("prompt-lookup",), 6)]

__all__ = ["expected"]


def sampling(index: int) -> SamplingParams:
    return SamplingParams(10 + 7 * (index % 3), 0.8 * (index % 2), top_p=0.9, seed=index)


@pytest.mark.parametrize("compiled", ["1", pytest.param("0", marks=pytest.mark.deep)])
def test_threads_that_share_a_model_each_get_their_own_text(monkeypatch, compiled) -> None:
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    triple = LookaheadConfig(3, 3, 3)
    with LLM(SHIPPED, lookahead=triple, dtype="float32", max_batch_size=5) as llm:
        jobs = [(TEXTS[i % len(TEXTS)], sampling(i), DRAFTERS[i // 3]) for i in range(12)]
        want = [llm.generate(text, own, PLAIN)[0].output_ids for text, own, _ in jobs]
        scores = [llm.log_probs(text, ids) for (text, _, _), ids in zip(jobs, want, strict=True)]
        beams = llm.beam_search(TEXTS[0], max_output_len=3)

        def work(first: int) -> None:
            for index in range(first, len(jobs), 8):
                text, own, drafter = jobs[index]
                (done,) = llm.generate(text, own, drafter=drafter)
                assert done.output_ids == want[index]
                assert sum(done.stats.step_lengths) == len(done.output_ids)
                assert llm.log_probs(text, done.output_ids) == scores[index]
                assert llm.beam_search(TEXTS[0], max_output_len=3) == beams
                assert llm.stats().steps > 0
                next(llm.stream(text, own))  # and no more of it

        threads, before = Threads(), llm.stats().new_tokens
        for first in range(8):
            threads.start(work, first)
        threads.join()
        assert llm.generate(TEXTS[0], sampling(0))[0].output_ids == want[0]
        pool = llm._executor._cache.pool
        assert pool.num_free == pool.num_blocks
        assert llm.stats().new_tokens - before >= sum(map(len, want))


def test_threads_wake_each_other_when_they_have_read_enough(monkeypatch, expected) -> None:
    """Whoever steps goes away after one chunk: the turn is never left with nobody."""
    opened, threads = Opened(monkeypatch), Threads()

    def work(name: str) -> None:
        for _ in range(12):
            got: list[int] = []
            assert rest(opened.stream(name), got).output_ids == tuple(got) == expected[name]
            next(opened.stream(name, NO_DRAFTER))

    for name in (*PROMPTS, *PROMPTS):
        threads.start(work, name)
    threads.join()
    opened.settled()


def test_a_stream_that_dies_within_a_step_changes_nothing_there(monkeypatch, expected) -> None:
    """The garbage collector runs finalisers anywhere, also in the thread that steps."""
    opened = Opened(monkeypatch)
    left = []
    opened.before_forwards(lambda: left and (left.clear(), gc.collect()))
    for _ in range(3):
        dying = [opened.stream("broken", NO_DRAFTER)]
        next(dying[0])
        dying.append(dying)  # type: ignore[arg-type]  # a cycle, for the collector
        left.append(dying)
        del dying
        got: list[int] = []
        assert rest(opened.stream("other"), got).output_ids == tuple(got) == expected["other"]
        assert not left
        opened.settled()


def test_closing_ends_streams_of_other_threads_with_an_error() -> None:
    llm = LLM(SHIPPED, lookahead=PLAIN, dtype="float32", max_batch_size=2)
    threads, reading = Threads(), [threading.Event() for _ in range(4)]

    def read_on(mine: threading.Event) -> None:
        while True:
            for _ in llm.stream(TEXTS[0], SamplingParams(40)):
                mine.set()

    def read(mine: threading.Event) -> None:
        with pytest.raises(TrtlaError, match="the model is closed"):
            read_on(mine)

    for mine in reading:
        threads.start(read, mine)
    assert all(mine.wait(60) for mine in reading)
    llm.close()
    threads.join()
    with pytest.raises(TrtlaError, match="the model is closed"):
        llm.generate(TEXTS[0])
    assert llm.description.startswith(("torch on cpu", "cpu"))
    llm.close()


USES = {
    "stream": lambda opened: rest(opened.stream("broken", NO_DRAFTER), []),
    "call": lambda opened: opened.llm.log_probs([1] * 60, [1] * 60),
}
"""Of several forwards each."""


def cut_off(opened: Opened, use: str, before: Callable[[], object]) -> Threads:
    """A thread in a forward of a use that the closing of the model ends."""
    threads, inside = Threads(), threading.Event()

    def work() -> None:
        with pytest.raises(TrtlaError, match="the model is closed"):
            USES[use](opened)

    opened.before_forwards(lambda: (inside.set(), before()))
    threads.start(work)
    assert inside.wait(60)
    return threads


@pytest.mark.parametrize("use", USES)
def test_closing_does_not_wait_for_the_end_of_what_runs(monkeypatch, use) -> None:
    """The forward it is in is the last one."""
    opened, forwards = Opened(monkeypatch), list[None]()
    ending = partial(wait_for, lambda: opened.llm.executor._ending)
    threads = cut_off(opened, use, lambda: forwards.append(ending()))
    opened.llm.close()
    threads.join()
    assert len(forwards) == 1


@pytest.mark.parametrize("use", USES)
def test_an_interrupted_block_leaves_closing_to_the_thread(monkeypatch, use) -> None:
    """A forward that takes long is not waited for; after it the executor is closed all the same."""
    opened, go, closed = Opened(monkeypatch), threading.Event(), threading.Event()
    monkeypatch.setattr(opened.executor, "close", closed.set)
    threads = cut_off(opened, use, lambda: go.wait(60))
    with suppress(KeyboardInterrupt), opened.llm:
        raise KeyboardInterrupt
    assert not closed.is_set()
    go.set()
    assert closed.wait(60)
    threads.join()
    opened.llm.close()
    assert not opened.llm.executor._thread.is_alive()


def test_a_finaliser_closes_a_model_within_its_own_step(monkeypatch, expected) -> None:
    """Whichever thread collects garbage: a generator that holds the block may be in it."""
    opened, lost = Opened(monkeypatch), list[object]()
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    def reading() -> Iterator[object]:
        with opened.llm as model:
            yield from model.stream([[1, 2]], SamplingParams(4))

    begun = reading()
    next(begun)
    opened.llm.executor.call(lambda _: begun.close())
    opened.llm.executor._thread.join(60)
    assert not lost
    with pytest.raises(TrtlaError, match="the executor is closed"):
        opened.executor.poll()


def test_a_model_that_is_used_within_its_own_step_says_so(monkeypatch, expected) -> None:
    opened = Opened(monkeypatch)

    class Asking(DraftRecorder):
        def observed(self, greedy: object, committed: object) -> None:
            opened.llm.generate([[1]], SamplingParams(1))

    with pytest.raises(TrtlaError, match="used from within one of its own steps"):
        rest(opened.llm.stream([[1, 2]], SamplingParams(4), watch=Asking), [])
    assert rest(opened.stream("other"), []).output_ids == expected["other"]
    opened.settled()


def test_texts_are_encoded_in_threads(tmp_path) -> None:
    """Both ways: from tokenizer.json alone, and through transformers."""
    from trtla.llm.text import Tokenizer

    plain, full = Tokenizer(SHIPPED), Tokenizer(SHIPPED)
    full._plain, threads = None, Threads()
    want = [plain.encode(text * 20) for text in TEXTS]

    def work() -> None:
        for tokenizer in (plain, full):
            for text, ids in zip(TEXTS * 5, want * 5, strict=True):
                assert tokenizer.encode(text * 20) == ids
                assert tokenizer.decode(ids) == text * 20

    for _ in range(8):
        threads.start(work)
    threads.join()


def in_a_fork(work: Callable[[], Iterator[str]]) -> list[str]:
    """What a forked child says, each line at once; it is killed where it hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for line in work():
                os.write(write, f"{line}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    end = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < end:
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return [*pipe.read().splitlines(), *([] if ended else ["hangs"])]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_is_told_to_open_the_model_anew(monkeypatch) -> None:
    before = num_threads()
    set_threads(2)  # what the child does not have
    try:
        llm = LLM(SHIPPED, lookahead=PLAIN, dtype="float32", max_batch_size=2)
        want = llm.generate(TEXTS[0], SamplingParams(6))[0].output_ids
        begun = llm.stream(TEXTS[1], SamplingParams(9))
        next(begun)
        uses: list[Callable[[], object]] = [
            lambda: llm.generate(TEXTS[0]),
            lambda: llm.generate([[1, 2]]),
            lambda: list(begun),
            lambda: llm.encode("x"),
            lambda: llm.log_probs([1], [2]),
            lambda: llm.beam_search([1]),
            lambda: llm.stats(),
            lambda: llm._executor.poll(),
        ]

        def child() -> Iterator[str]:
            for use in uses:
                try:
                    use()
                    yield "no error"
                except TrtlaError as error:
                    yield error.message.partition(" (")[0]
            llm.close()
            llm._executor.close()
            gc.collect()
            yield "closed"

        said = in_a_fork(child)
        assert said == ["the model was opened in another process"] * len(uses) + ["closed"]
        assert llm.generate(TEXTS[0], SamplingParams(6))[0].output_ids == want
        assert list(begun)[-1].completion is not None
        llm.close()
    finally:
        set_threads(before)


def held(opened: Opened) -> threading.Event:
    """Keeps the model's thread between two steps until this is set."""
    inside, go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        inside.set()
        assert go.wait(60)

    opened.llm.executor.ask(hold)
    assert inside.wait(60)
    return go


def test_calls_come_in_the_order_of_their_arrival(monkeypatch) -> None:
    opened, order = Opened(monkeypatch), list[str]()
    go = held(opened)
    asked = [opened.llm.executor.ask(lambda _, name=name: order.append(name)) for name in "abc"]
    go.set()
    for one in asked:
        one.result(60)
    assert order == ["a", "b", "c"]


def test_counters_are_there_while_another_thread_closes(monkeypatch) -> None:
    for _ in range(5):
        opened, threads, ended = Opened(monkeypatch), Threads(), threading.Event()

        def read(opened=opened, ended=ended) -> None:
            while not ended.is_set():
                opened.llm.stats()

        for _ in range(3):
            threads.start(read)
        opened.llm.close()
        ended.set()
        threads.join()


def test_counters_are_there_where_the_model_closes_meanwhile(monkeypatch) -> None:
    engine = Opened(monkeypatch).llm.executor
    engine.stop(None)
    executor = engine._executor
    drafters = executor._drafting.drafters
    heads = drafters.heads

    def closing():
        executor.close()
        return heads()

    monkeypatch.setattr(drafters, "heads", closing)
    assert executor.stats().steps == executor.stats().steps == 0


def test_calls_and_steps_alternate_while_both_are_wanted(monkeypatch, expected) -> None:
    """Threads that call without a pause starve no stream, and a stream starves no call."""
    opened, threads, ended, calls = Opened(monkeypatch), Threads(), threading.Event(), [0]
    engine = opened.llm.executor

    def call() -> None:
        while not ended.is_set():
            opened.llm.stats()
            calls[0] += 1

    for _ in range(3):
        threads.start(call)
    opened.before_forwards(lambda: wait_for(lambda: ended.is_set() or engine._commands.qsize()))
    for _ in range(4):
        got: list[int] = []
        assert rest(opened.stream("other", NO_DRAFTER), got).output_ids == expected["other"]
    ended.set()
    threads.join()
    assert calls[0] > 8
    opened.settled()


def test_a_poll_runs_a_step_even_if_callers_wait_all_the_time() -> None:
    executor, _ = toy_executor(hash_scores(5, 1), 5, PLAIN)
    executor.interrupted = lambda: True
    executor.submit(request([1, 2], 9))
    assert [len(output.new_tokens) for _ in range(9) for output in executor.poll()] == [1] * 9


def one_end(opened: Opened, expected: dict[str, tuple[int, ...]], finish: str, lines: Lines):
    """A stream is read and ends while another is in flight; an interrupt may come meanwhile."""
    other, read = opened.stream("other"), []
    got = list(next(other).token_ids)
    with no_collection(), suppress(KeyboardInterrupt), lines:
        broken = opened.stream("broken")
        if finish == "close":
            next(broken)
            broken.close()
        else:
            rest(broken, read)
    assert tuple(read) == expected["broken"][: len(read)]
    assert rest(other, got).output_ids == tuple(got) == expected["other"]
    opened.settled(len(got))


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("finish", ["read", "close"])
def test_an_interrupt_at_any_line_harms_no_other_stream(monkeypatch, expected, finish) -> None:
    modules = (engine_thread, llm, answer)
    whole = Lines(modules)
    one_end(Opened(monkeypatch), expected, finish, whole)
    places = once_each(whole.seen)
    assert len(places) > 30
    for place in some(places):
        one_end(Opened(monkeypatch), expected, finish, Lines(modules, place))


def test_interrupts_at_random_times_harm_no_other_stream(monkeypatch, expected):
    """By a signal, as Ctrl-C comes."""
    opened, dice = Opened(monkeypatch), random.Random(7)
    with on_alarm(interrupt):
        for _ in range(40):
            others = {name: opened.stream(name) for name in ("other", "third")}
            got = {name: list(next(stream).token_ids) for name, stream in others.items()}
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 1.5e-2))
                rest(opened.stream("broken"), [])
                signal.setitimer(signal.ITIMER_REAL, 0)
            for name, stream in others.items():
                assert rest(stream, got[name]).output_ids == tuple(got[name]) == expected[name]
            opened.settled(sum(map(len, got.values())))


@pytest.mark.parametrize("use", USES)
def test_an_interrupt_is_raised_at_once_and_ends_what_was_waited_for(monkeypatch, use) -> None:
    """However long a forward takes; no other follows it."""
    opened, threads, late = Opened(monkeypatch), Threads(), list[bool]()
    inside, go = threading.Event(), threading.Event()
    opened.before_forwards(lambda: (inside.set(), late.append(go.wait(60))))
    threads.start(lambda: inside.wait(60) and signal.setitimer(signal.ITIMER_REAL, 0.01))
    with on_alarm(interrupt):
        with pytest.raises(KeyboardInterrupt):
            USES[use](opened)
        assert not late, "it waited for the forward"
    threads.join()
    go.set()
    opened.llm.stats()
    assert len(late) == 1
    opened.settled()


def test_a_signal_handler_may_use_the_model_while_its_thread_waits(monkeypatch, expected) -> None:
    opened, got = Opened(monkeypatch), list[tuple[int, ...]]()
    go = held(opened)

    def handle() -> None:
        go.set()
        got.append(rest(opened.stream("other"), []).output_ids)

    with on_alarm(handle):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        opened.llm.executor.call(lambda _: got.append(()))
    assert sorted(got) == [(), expected["other"]]
    opened.settled()


def test_a_model_that_is_dropped_or_left_open_ends_its_thread() -> None:
    opened = LLM(SHIPPED, lookahead=PLAIN, dtype="float32", max_batch_size=2)
    thread = opened.executor._thread
    del opened
    gc.collect()
    thread.join(120)
    assert not thread.is_alive()
    code = (
        f"from trtla import LLM, SamplingParams; llm = LLM({str(SHIPPED)!r}); "
        "stream = llm.stream('a', SamplingParams(1500)); print(bool(next(stream)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
