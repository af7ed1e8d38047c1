"""A step that an exception leaves harms no other request: nothing lost, doubled, leaked or stuck.

Exceptions come at every line of the modules that hold state, one run each.
"""

from __future__ import annotations

import random
import signal
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.support.examples import some
from tests.support.interrupts import Lines, once_each
from tests.support.mixed import VOCAB
from tests.support.torn import CHAIN, PROMPTS, SAMPLING, Opened, rest
from tests.support.toys import hash_scores, request, run, tokens_of, toy_executor
from trtla import LookaheadConfig, SamplingParams, TrtlaError
from trtla.llm import answer, llm, shared_executor
from trtla.runtime import blocks as block_reuse
from trtla.runtime import executor as in_flight
from trtla.runtime import sequence
from trtla.runtime.auto import steps as adaptive
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters import draft_model, factory
from trtla.runtime.loop import drafting, scheduler
from trtla.runtime.loop import executor as torch_executor
from trtla.runtime.loop import step as step_loop
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models import kv_cache
from trtla.settings.drafting import NO_DRAFTER
from trtla.settings.lookahead import AUTOREGRESSIVE

STATE = {
    "executor": (torch_executor, in_flight, drafting, sequence),
    "step": (step_loop, adaptive),
    "threads": (shared_executor, llm, answer),
    "blocks": (scheduler, kv_cache, block_reuse),
    "drafters": (draft_model, factory),
}


def interrupted_run(opened, expected, lines):
    """Three streams in one batch, one of them read while exceptions may come."""
    others = {name: opened.stream(name) for name in ("other", "third")}
    got = {name: list(next(stream).token_ids) for name, stream in others.items()}
    broken, read = opened.stream("broken"), []
    with suppress(KeyboardInterrupt), lines:
        rest(broken, read)
    assert tuple(read) == expected["broken"][: len(read)]
    for name, stream in others.items():
        done = rest(stream, got[name])
        assert tuple(got[name]) == done.output_ids == expected[name]
        assert done.finish_reason == "length"
        assert sum(done.stats.step_lengths) == len(done.output_ids)
        assert len(done.stats.step_lengths) == done.stats.steps + 1
        assert done.stats.accepted <= done.stats.drafted
    opened.settled(sum(map(len, got.values())) + len(read))


@pytest.mark.deep(first=3)
@pytest.mark.parametrize(
    ("part", "ahead"), [*((part, False) for part in STATE), ("executor", True), ("step", True)]
)
def test_an_interrupt_at_any_line_harms_no_other_stream(monkeypatch, expected, part, ahead):
    whole = Lines(STATE[part])
    interrupted_run(Opened(monkeypatch, ahead=ahead), expected, whole)
    places = once_each(whole.seen)
    assert len(places) > 20
    for place in some(places):
        lines = Lines(STATE[part], place)
        interrupted_run(Opened(monkeypatch, ahead=ahead), expected, lines)
        assert len(lines.seen) == place + 1


@pytest.mark.deep
def test_an_interrupt_of_the_recovery_is_recovered_from(monkeypatch, expected):
    """The second one comes at every line on the way from a torn step back to the next."""
    modules = (torch_executor, sequence, in_flight, drafting, draft_model, factory)

    def run_twice(second):
        opened, first = Opened(monkeypatch), Lines((step_loop,), 90)
        other = opened.stream("other")
        got = list(next(other).token_ids)
        for lines in (first, second):
            stream, read = opened.stream("broken"), []
            with suppress(KeyboardInterrupt), lines:
                rest(stream, read)
            assert tuple(read) == expected["broken"][: len(read)]
        assert len(first.seen) == 91
        assert rest(other, got).output_ids == tuple(got) == expected["other"]
        opened.settled(len(got))

    whole = Lines(modules)
    run_twice(whole)
    start = next(i for i, (_, line) in enumerate(whole.seen) if line == first_line_of_recovery())
    for place in some(once_each(whole.seen[: start + 300])):
        run_twice(Lines(modules, place))


def first_line_of_recovery():
    lines = TorchExecutor._recover.__code__.co_lines()
    return sorted(line for _, _, line in lines if line)[1]


@pytest.mark.deep
def test_interrupts_at_random_times_harm_no_other_stream(monkeypatch, expected):
    """By a signal, as Ctrl-C comes: wherever the interpreter looks for one."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before, random_ = signal.signal(signal.SIGALRM, interrupt), random.Random(7)
    try:
        for _ in range(40):
            opened, others = Opened(monkeypatch), {}
            others = {name: opened.stream(name) for name in ("other", "third")}
            got = {name: list(next(stream).token_ids) for name, stream in others.items()}
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-4, 1.5e-2))
                rest(opened.stream("broken"), [])
                signal.setitimer(signal.ITIMER_REAL, 0)
            for name, stream in others.items():
                assert rest(stream, got[name]).output_ids == tuple(got[name]) == expected[name]
            opened.settled(sum(map(len, got.values())))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Raising(NoDrafter):
    """A drafter that raises in its n-th step."""

    def __init__(self, error, when, place):
        self.error, self.left, self.place = error, when, place

    def count(self, place):
        if place == self.place:
            self.left -= 1
            if self.left < 0:
                raise self.error

    def propose(self):
        self.count("propose")
        return super().propose()

    def observe(self, greedy, committed):
        self.count("observe")


@pytest.mark.parametrize("place", ["propose", "observe"])
@pytest.mark.parametrize("when", [0, 3])
def test_a_drafter_that_raises_ends_its_own_request_alone(monkeypatch, expected, place, when):
    opened, error = Opened(monkeypatch), ValueError("no such n-gram")
    failing = opened.llm.stream(
        PROMPTS["broken"],
        SAMPLING["broken"],
        drafter=CHAIN,
        watch=lambda *_: Raising(error, when, place),
    )
    other, read, got = opened.stream("other"), [], []
    first = next(other)
    got += first.token_ids
    with pytest.raises(TrtlaError, match="prompt 0 failed: ValueError: no such n-gram") as failure:
        rest(failing, read)
    assert failure.value.__cause__ is error
    assert tuple(read) == expected["broken"][: len(read)]
    assert len(read) == when + 1
    assert rest(other, got).output_ids == tuple(got) == expected["other"]
    opened.settled(len(got))


def test_a_drafter_that_raises_in_another_streams_step_is_not_that_streams_fault(
    monkeypatch, expected
):
    opened = Opened(monkeypatch)
    failing = opened.llm.stream(
        PROMPTS["broken"],
        SAMPLING["broken"],
        watch=lambda *_: Raising(ValueError("x"), 2, "observe"),
    )
    next(failing)
    other, got = opened.stream("other"), []
    assert rest(other, got).output_ids == expected["other"]
    with pytest.raises(TrtlaError, match="failed: ValueError: x"):
        rest(failing, [])
    opened.settled(len(got))


def test_a_stop_check_that_raises_ends_its_own_request_alone():
    def check(ids):
        if len(ids) == 4:
            raise ZeroDivisionError
        return False

    executor, _ = toy_executor(hash_scores(VOCAB), VOCAB, LookaheadConfig(3, 3, 2))
    asked = [
        replace(request([1, 2], 12, request_id=0), stop_check=check),
        request([3], 12, request_id=1),
    ]
    whole = toy_executor(hash_scores(VOCAB), VOCAB, AUTOREGRESSIVE)[0]
    want = run(whole, [request([3], 12, request_id=1)])[1]
    outputs = run(executor, asked)
    assert outputs[0][-1].finish_reason == "failed"
    assert "request 0 failed: ZeroDivisionError" in outputs[0][-1].error.message
    sent = [o for place, o in enumerate(outputs[1]) if o not in outputs[1][:place]]
    assert tokens_of(sent) == tokens_of(want)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
def test_a_forward_that_fails_is_raised_where_it_was_made(monkeypatch, expected, error):
    opened = Opened(monkeypatch)
    other, broken, got = opened.stream("other"), opened.stream("broken"), []
    got += next(other).token_ids
    forward = opened.executor._stepper.forward

    def fail(feeds):
        forward(feeds)
        raise error

    opened.executor._stepper.forward = fail
    with pytest.raises(error):
        rest(broken, [])
    opened.executor._stepper.forward = forward
    assert rest(other, got).output_ids == tuple(got) == expected["other"]
    assert list(broken) == []
    opened.settled(len(got))


def test_a_forward_that_always_fails_ends_one_stream_after_the_other(monkeypatch):
    opened = Opened(monkeypatch)
    streams = [
        opened.llm.stream([[1, 2]], SamplingParams(40), drafter=NO_DRAFTER) for _ in range(3)
    ]
    for stream in streams:
        next(stream)
    forward = opened.executor._stepper.forward

    def fail(feeds):
        raise RuntimeError("out of order")

    opened.executor._stepper.forward = fail
    for stream in streams:
        with pytest.raises(RuntimeError, match="out of order"):
            rest(stream, [])
    opened.executor._stepper.forward = forward
    opened.settled(3)


def test_a_request_that_can_never_be_admitted_is_ended(monkeypatch):
    """As after a leak, which no known interrupt brings about."""
    opened = Opened(monkeypatch)
    pool = opened.executor._cache.pool
    pool.allocate(32 * (pool.num_blocks - 1))
    with pytest.raises(TrtlaError, match="prompt 0 needs cache for 58 tokens, and 1"):
        opened.llm.generate([PROMPTS["other"]], SAMPLING["other"])


def test_tokens_are_counted_once(monkeypatch, expected):
    opened = Opened(monkeypatch)
    streams = {name: opened.stream(name) for name in PROMPTS}
    for stream in streams.values():
        next(stream)
    with pytest.raises(KeyboardInterrupt), Lines((step_loop,), 150):
        rest(opened.stream("third"), [])
    (again,) = opened.llm.generate([PROMPTS["third"]], SAMPLING["third"])
    done = [rest(stream, []) for stream in streams.values()]
    total, all_ = opened.llm.stats(), [*done, again]
    lost = total.new_tokens - sum(len(c.output_ids) for c in all_)
    assert 0 <= lost < len(expected["third"])
    assert total.accepted >= sum(c.stats.accepted for c in all_)
    assert total.fed == sum(opened.model.fed)
    assert [sum(c.stats.step_lengths) for c in all_] == [len(c.output_ids) for c in all_]
