"""Whose turn it is with a model that threads share: in which order, and after an interrupt."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.interrupts import Lines
from tests.support.torn import Opened, Threads, expected, rest
from trtla.llm import llm, shared_executor
from trtla.settings.drafting import NO_DRAFTER

__all__ = ["expected"]


@pytest.fixture(autouse=True)
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset_backoff-up that is lost stays lost."""
    monkeypatch.setattr(shared_executor, "_LOOK_AGAIN_S", 3600.0)


def close(stream):
    next(stream[0])
    return stream[0].close


def collect(stream):
    next(stream[0])
    stream.append(stream)  # a cycle, for the collector
    stream = [stream]

    def drop():
        stream.clear()
        gc.collect()

    return drop


def end(stream):
    while not next(stream[0]).completion:
        pass
    return lambda: next(stream[0], None)


def one_end(opened, expected, prepare, lines):
    """A stream ends while another is in flight; exceptions may come meanwhile."""
    other = opened.stream("other")
    got = list(next(other).token_ids)
    finish = prepare([opened.stream("broken")])
    with suppress(KeyboardInterrupt), lines:
        finish()
    shared = opened.llm.executor
    assert not shared._turn
    assert not shared._idle
    assert not shared._calls
    assert rest(other, got).output_ids == tuple(got) == expected["other"]
    opened.settled(len(got))


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("prepare", [close, collect, end])
def test_an_interrupt_at_the_end_of_a_stream_leaves_the_turn_free(
    monkeypatch, request, expected, prepare
):
    """At every execution of every line: what is done twice may fail in its second time only."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # of an interrupted finaliser
    modules = (shared_executor, llm)
    gc.collect()
    gc.freeze()  # the collector looks at what is made from here on, which is quick
    request.addfinalizer(gc.unfreeze)
    whole = Lines(modules)
    one_end(Opened(monkeypatch), expected, prepare, whole)
    assert len(whole.seen) > 10
    for place in range(len(whole.seen)):
        lines = Lines(modules, place)
        one_end(Opened(monkeypatch), expected, prepare, lines)
        assert len(lines.seen) == place + 1


class Record:
    """What happens inside the executor, and who waits when it begins."""

    def __init__(self, opened: Opened) -> None:
        self.shared, self.seen = opened.llm.executor, list[tuple[str, bool]]()
        poll = opened.executor.poll

        def step(timeout=None):
            self.seen.append(("step", len(self.shared._calls) > 0))
            return poll(timeout)

        opened.executor.poll = step

    def call(self) -> None:
        """A call that notes at its end whether a stream waits."""
        self.shared.call(lambda _: self.seen.append(("call", len(self.shared._idle) > 0)))

    def after(self, kind: str) -> list[str]:
        """What came after events of a kind for which others were waiting."""
        pairs = zip(self.seen, self.seen[1:], strict=False)
        return [then for (now, waited), (then, _) in pairs if now == kind and waited]


@pytest.mark.parametrize("callers", [1, 3])
def test_calls_and_steps_alternate_while_both_are_wanted(monkeypatch, expected, callers) -> None:
    """Threads that call without a pause starve no stream, and a stream starves no call."""
    opened, threads, ended = Opened(monkeypatch), Threads(), threading.Event()
    record = Record(opened)

    def call() -> None:
        left = 2000  # so that a stream which starves is seen, and does not hang
        while left and not ended.is_set():
            record.call()
            left -= 1

    for _ in range(callers):
        threads.start(call)
    for _ in range(4):
        got: list[int] = []
        assert rest(opened.stream("other", NO_DRAFTER), got).output_ids == expected["other"]
    ended.set()
    threads.join()
    after_calls, after_steps = record.after("call"), record.after("step")
    assert min(len(after_calls), len(after_steps)) > 8
    assert set(after_calls) == {"step"}
    assert set(after_steps) == {"call"}
    opened.settled(0)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_calls_come_in_the_order_of_their_arrival(monkeypatch) -> None:
    opened, threads, order = Opened(monkeypatch), Threads(), list[str]()
    shared, go = opened.llm.executor, threading.Event()

    def first(_: object) -> None:
        order.append("first")
        assert go.wait(60)

    def twice() -> None:
        shared.call(first)
        shared.call(lambda _: order.append("again"))

    threads.start(twice)
    until(lambda: bool(order))
    for name in "abc":
        waiting = len(shared._calls)
        threads.start(shared.call, lambda _, name=name: order.append(name))
        until(lambda waiting=waiting: len(shared._calls) > waiting)
    go.set()
    threads.join()
    assert order == ["first", "a", "b", "c", "again"]
    opened.settled(0)


def test_a_thread_that_is_interrupted_while_it_waits_holds_up_nobody(monkeypatch, expected) -> None:
    """At every line on its way into the queue, and out of it when its turn has come."""

    opened = Opened(monkeypatch)
    shared = opened.llm.executor

    def interrupted(lines: Lines) -> None:
        threads, order = Threads(), list[str]()
        go, inside = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            inside.set()
            assert go.wait(60)

        def wait() -> None:
            with suppress(KeyboardInterrupt), lines:
                shared.call(lambda _: order.append("interrupted"))
            order.append("done")

        threads.start(shared.call, hold)
        assert inside.wait(60)
        threads.start(wait)
        until(lambda: len(shared._calls) > 1 or bool(order))
        waiting = len(shared._calls)
        threads.start(shared.call, lambda _: order.append("behind"))
        until(lambda: len(shared._calls) > waiting or bool(order))
        go.set()
        threads.join()
        assert {"done", "behind"} <= set(order)
        assert not shared._turn
        assert not shared._calls
        assert rest(opened.stream("other"), []).output_ids == expected["other"]

    whole = Lines((shared_executor,))
    interrupted(whole)
    assert len(whole.seen) > 20
    for place in range(len(whole.seen)):
        interrupted(Lines((shared_executor,), place))


def test_a_signal_handler_may_use_the_model_while_its_thread_waits(monkeypatch, expected) -> None:
    """A caller that the handler interrupted cannot go on before it, so it must not come first."""
    monkeypatch.setattr(shared_executor, "_LOOK_AGAIN_S", 0.01)
    opened, threads, got = Opened(monkeypatch), Threads(), list[tuple[int, ...]]()
    shared, inside, go = opened.llm.executor, threading.Event(), threading.Event()

    def hold(_: object) -> None:
        inside.set()
        until(lambda: len(shared._calls) > 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        assert go.wait(60)

    def handle(*_: object) -> None:
        go.set()
        for _ in range(2):
            stream = opened.stream("other")
            threads.start(lambda: rest(opened.stream("third"), []))
            got.append(rest(stream, []).output_ids)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        threads.start(shared.call, hold)
        assert inside.wait(60)
        shared.call(lambda _: got.append(()))
    finally:
        signal.signal(signal.SIGALRM, before)
    threads.join()
    assert got == [expected["other"], expected["other"], ()]
    opened.settled(0)
