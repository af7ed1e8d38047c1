"""A step that fails harms no request: nothing lost, doubled, leaked or stuck.

Errors come at every line of the modules that hold state, one run each.
"""

from __future__ import annotations

from functools import partial
from linecache import getline
from queue import SimpleQueue

import pytest

from tests.support.examples import some
from tests.support.interrupts import Lines, no_collection, once_each
from tests.support.torn import CHAIN, PROMPTS, SAMPLING, Opened, expected, rest
from trtla import SamplingParams, TrtlaError
from trtla.llm.prompt import PromptRequest
from trtla.runtime import blocks as block_reuse
from trtla.runtime import executor as in_flight
from trtla.runtime import sequence
from trtla.runtime.auto import heads as auto_heads
from trtla.runtime.drafters import draft_model, eagle, factory
from trtla.runtime.loop import drafting, scheduler
from trtla.runtime.loop import executor as torch_executor
from trtla.runtime.loop import step as step_loop
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models import kv_cache
from trtla.runtime.request import DraftRecorder
from trtla.settings.drafting import NO_DRAFTER

__all__ = ["expected"]

STATE = {
    "executor": (torch_executor, in_flight, drafting, sequence),
    "step": (step_loop,),
    "blocks": (scheduler, kv_cache, block_reuse),
    "drafters": (draft_model, factory),
    "heads": (eagle, auto_heads),
}


LAST = "return outputs"
"""A step's last line, which fails nowhere but in a test: its outputs would be lost."""


class Torn(BaseException):
    """No error that the code knows."""


def torn_run(opened, expected, lines):
    """Three texts in one batch; errors may come at any line of the thread that decodes them."""
    with no_collection():
        _torn_run(opened, expected, lines)


def _torn_run(opened, expected, lines):
    llm, inbox, names = opened.llm, SimpleQueue(), list(PROMPTS)
    answers = {
        answer.request.request_id: answer
        for answer in llm.answers_to(
            [PromptRequest(one, PROMPTS[one], SAMPLING[one], drafter=CHAIN) for one in names]
        )
    }
    requests = [answer.request for answer in answers.values()]
    got = {name: [] for name in names}
    llm.executor.call(lambda _: lines.__enter__())
    llm.executor.submit(requests, inbox.put)
    while answers:
        for request_id, output in inbox.get(timeout=120):
            answer = answers[request_id]
            chunk, name = answer.add(output), names[answer.index]
            got[name] += chunk.token_ids
            if output.finish_reason is not None:
                del answers[request_id]
            if output.error is not None:  # it was refused where it was handed in
                assert "Torn" in output.error.message
                assert got.pop(name) == []
            elif chunk.completion is not None:
                done = chunk.completion
                assert tuple(got[name]) == done.output_ids == expected[name]
                assert done.finish_reason == "length"
                assert sum(done.stats.step_lengths) == len(done.output_ids)
                assert len(done.stats.step_lengths) == done.stats.steps + 1
                assert done.stats.accepted <= done.stats.drafted
    llm.executor.call(lambda _: lines.__exit__())
    assert len(got) >= 2
    opened.settled(sum(map(len, got.values())))


@pytest.mark.deep(first=2)
@pytest.mark.parametrize(
    ("part", "ahead"), [*((part, False) for part in STATE), ("executor", True), ("step", True)]
)
def test_an_error_at_any_line_harms_no_text(monkeypatch, expected, part, ahead):
    whole = Lines(STATE[part])
    torn_run(Opened(monkeypatch, ahead=ahead), expected, whole)
    places = [one for one in once_each(whole.seen) if getline(*whole.seen[one]).strip() != LAST]
    assert len(places) > 20
    for place in some(places):
        lines = Lines(STATE[part], place, Torn)
        torn_run(Opened(monkeypatch, ahead=ahead), expected, lines)
        assert len(lines.seen) == place + 1


@pytest.mark.deep
def test_an_error_in_the_recovery_is_recovered_from(monkeypatch, expected):
    """The second one comes at every line on the way from a torn step back to the next."""
    modules = (torch_executor, sequence, in_flight, drafting, draft_model, factory)

    def run_twice(second):
        opened, left = Opened(monkeypatch), [second]
        opened.llm.executor.log = lambda _: left and left.pop().__enter__()
        torn_run(opened, expected, Lines((step_loop,), 90, Torn))
        assert not left

    whole = Lines(modules)
    run_twice(whole)
    start = next(i for i, (_, line) in enumerate(whole.seen) if line == first_line_of_recovery())
    for place in some(once_each(whole.seen[: start + 300])):
        run_twice(Lines(modules, place, Torn))


def first_line_of_recovery():
    lines = TorchExecutor._recover.__code__.co_lines()
    return sorted(line for _, _, line in lines if line)[1]


class Raising(DraftRecorder):
    """Raises in a drafter's n-th step."""

    def __init__(self, error, when, place, *of):
        super().__init__(*of)
        self.error, self.left, self.place = error, when, place

    def count(self, place):
        if place == self.place:
            self.left -= 1
            if self.left < 0:
                raise self.error

    def proposed(self, draft):
        self.count("propose")
        super().proposed(draft)

    def observed(self, greedy, committed):
        self.count("observe")


@pytest.mark.parametrize("place", ["propose", "observe"])
@pytest.mark.parametrize("when", [0, 3])
def test_a_drafter_that_raises_ends_its_own_request_alone(monkeypatch, expected, place, when):
    opened, error = Opened(monkeypatch), ValueError("no such n-gram")
    failing = opened.llm.stream(
        PROMPTS["broken"],
        SAMPLING["broken"],
        drafter=NO_DRAFTER,
        watch=partial(Raising, error, when, place),
    )
    other, read, got = opened.stream("other"), [], []
    got += next(other).token_ids
    with pytest.raises(TrtlaError, match="prompt 0 failed: ValueError: no such n-gram") as failure:
        rest(failing, read)
    assert failure.value.__cause__ is error
    assert tuple(read) == expected["broken"][: len(read)]
    assert len(read) == when + 1
    assert rest(other, got).output_ids == tuple(got) == expected["other"]
    opened.settled(len(got))


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_step_that_fails_is_done_again(monkeypatch, expected, error):
    opened = Opened(monkeypatch)
    other, broken, got, read = opened.stream("other"), opened.stream("broken"), [], []
    got += next(other).token_ids

    opened.failing(error, 2)
    assert rest(broken, read).output_ids == tuple(read) == expected["broken"]
    assert rest(other, got).output_ids == tuple(got) == expected["other"]
    opened.settled(len(got) + len(read))


def test_steps_that_fail_one_after_another_are_raised_in_every_stream(monkeypatch, expected):
    """With the step's own error; the model is tried again for what comes then."""
    opened = Opened(monkeypatch)
    long = SamplingParams(40)
    streams = [opened.llm.stream([[1, 2]], long, drafter=NO_DRAFTER) for _ in range(3)]

    opened.failing(RuntimeError("out of order"), 3)
    with pytest.raises(RuntimeError, match="out of order"):
        rest(streams[0], [])
    assert list(streams[0]) == []
    for stream in streams[1:]:
        assert len(rest(stream, []).output_ids) == 40
    opened.settled(80)


def test_a_request_that_can_never_be_admitted_is_ended(monkeypatch):
    """As after a leak, which no known error brings about."""
    opened = Opened(monkeypatch)
    pool = opened.executor._cache.pool
    pool.allocate(32 * (pool.num_blocks - 1))
    with pytest.raises(TrtlaError, match="prompt 0 needs cache for 58 tokens, and 1"):
        opened.llm.generate([PROMPTS["other"]], SAMPLING["other"])


def test_tokens_are_counted_once(monkeypatch, expected):
    opened = Opened(monkeypatch)
    opened.llm.executor.call(lambda _: Lines((step_loop,), 150, Torn).__enter__())
    done = opened.llm.generate(list(PROMPTS.values()), list(SAMPLING.values()), drafter=CHAIN)
    total = opened.llm.stats()
    assert total.new_tokens == sum(len(one.output_ids) for one in done)
    assert total.accepted >= sum(one.stats.accepted for one in done)
    assert total.fed == sum(opened.model.fed)
