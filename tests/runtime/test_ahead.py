"""Steps that are begun before the last one's outputs are reported, as on GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.mixed import VOCAB
from tests.support.toys import hash_scores, request, run, tokens_of, toy_executor
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.loop.step import ForwardClock
from trtla.settings.drafting import NO_DRAFTER, DraftOptions
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import BeamSettings, SamplingParams

TRIPLE = LookaheadConfig(3, 3, 2)
PROMPTS = {0: [1, 2, 3, 1, 2], 1: [2, 1] * 9, 2: [3]}


def opened(triple=TRIPLE, **options):
    return toy_executor(hash_scores(VOCAB), VOCAB, triple, ahead=True, **options)


def asked(index, count=12):
    sampling = SamplingParams(count, 0.7, seed=index)
    return replace(request(PROMPTS[index], 1, request_id=index), sampling=sampling)


def alone(index, count=12):
    executor, _ = toy_executor(hash_scores(VOCAB), VOCAB, AUTOREGRESSIVE)
    return tokens_of(run(executor, [asked(index, count)])[index])


def rest(executor, texts):
    while outputs := executor.poll():
        for one in outputs:
            texts.setdefault(one.request_id, []).extend(one.new_tokens)
    pool = executor._cache.pool
    assert pool.num_free == pool.num_blocks
    return texts


def test_a_step_is_begun_before_its_predecessors_tokens_are_reported() -> None:
    for ahead in (False, True):
        executor, model = toy_executor(hash_scores(VOCAB), VOCAB, AUTOREGRESSIVE, ahead=ahead)
        executor.submit(asked(0, 4))
        forwards = []
        while executor.poll():
            forwards.append(len(model.fed))
        assert forwards == ([2, 3, 4, 4] if ahead else [1, 2, 3, 4])


@pytest.mark.parametrize("polls", [1, 2, 4])
def test_what_was_computed_for_a_cancelled_request_is_dropped(polls) -> None:
    executor, _ = opened()
    texts: dict[int, list[int]] = {}
    for index in PROMPTS:
        executor.submit(asked(index))
    for _ in range(polls):
        for one in executor.poll():
            texts.setdefault(one.request_id, []).extend(one.new_tokens)
    read = list(texts[1])
    executor.cancel(1)
    rest(executor, texts)
    assert texts == {0: alone(0), 1: read, 2: alone(2)}
    assert executor.stats().new_tokens == sum(map(len, texts.values()))


def test_all_may_be_cancelled_and_others_come() -> None:
    executor, _ = opened()
    executor.submit(asked(0))
    executor.poll()
    executor.cancel(0)
    executor.submit(asked(1))
    texts = rest(executor, {})
    assert texts[1] == alone(1)


def test_work_between_two_steps_ends_the_one_that_was_begun() -> None:
    executor, _ = opened(num_blocks=40)
    want = [*map(alone, (0, 1))]
    scored = replace(request([1, 2, 3], 1), request_id=7)
    fresh = TorchExecutor.log_probs(opened()[0], scored, [2, 1, 2])
    for index in (0, 1):
        executor.submit(asked(index))
    texts: dict[int, list[int]] = {}
    for turn in range(4):
        for one in executor.poll():
            texts.setdefault(one.request_id, []).extend(one.new_tokens)
        if turn % 2:
            executor.beam_search(request([1, 2], 4, request_id=8), BeamSettings(2))
        else:
            assert executor.log_probs(scored, [2, 1, 2]) == fresh
    rest(executor, texts)
    assert [texts[0], texts[1]] == want


def test_a_request_that_is_late_ends_with_what_was_reported() -> None:
    executor, _ = opened()
    sampling = SamplingParams(40, allotted_time_ms=600_000)
    late = replace(request(PROMPTS[0], 1), sampling=sampling, drafter=NO_DRAFTER)
    executor.submit(late)
    executor.submit(asked(1, 30))
    texts: dict[int, list[int]] = {}
    for one in executor.poll():
        texts.setdefault(one.request_id, []).extend(one.new_tokens)
    executor._deadlines[0] = 0.0
    ended = [one for one in executor.poll() if one.request_id == 0]
    assert [one.finish_reason for one in ended][-1] == "timed_out"
    for one in ended:
        texts[0].extend(one.new_tokens)
    rest(executor, texts)
    assert texts[1][-10:] == alone(1, 30)[-10:]
    assert 1 <= len(texts[0]) <= 2


def test_closing_forgets_a_step_that_was_begun() -> None:
    executor, _ = opened()
    executor.submit(asked(0))
    executor.poll()
    executor.close()
    assert executor.stats().new_tokens == 1


class Event:
    """A device's event, which is there once a forward of 5 ms has run."""

    def __init__(self, done):
        self.done = done

    def query(self):
        return self.done

    def elapsed_time(self, other):
        return 5.0


@pytest.mark.parametrize("done", [False, True])
def test_a_forward_that_ended_while_nobody_waited_is_timed_by_the_device(monkeypatch, done) -> None:
    """Otherwise the host has waited for it, and its own clock tells."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = ForwardClock(torch.device("cpu"))
    clock._begin, clock._end = Event(done), Event(done)
    now[0] += 3.0  # elsewhere
    clock.resumed()
    now[0] += 0.25  # the choice
    assert clock.seconds() == pytest.approx(0.255 if done else 3.25)


def test_a_step_with_a_request_that_was_cancelled_teaches_the_policy_nothing() -> None:
    executor, _ = opened(options=DraftOptions())
    taught = []
    for index in (0, 1):
        executor.submit(replace(asked(index, 40), adaptive=True))
    executor.poll()
    policy = executor._drafting.adaptive._policy
    record = policy.record
    policy.record = lambda *given: (taught.append(given[2]), record(*given))
    executor.poll()
    assert taught.pop() == 2
    executor.cancel(1)
    executor.poll()
    assert taught == []
    executor.poll()
    assert taught == [1]


def test_a_step_that_fails_is_not_the_fault_of_who_comes_next() -> None:
    executor, _ = opened()
    executor.submit(asked(0))
    texts: dict[int, list[int]] = {0: list(executor.poll()[0].new_tokens)}

    def fail(step, new):
        executor._stepper.complete = complete
        raise RuntimeError("CUDA out of memory")

    complete, executor._stepper.complete = executor._stepper.complete, fail
    executor.submit(asked(1))
    with pytest.raises(RuntimeError, match="out of memory"):
        executor.poll()
    texts = rest(executor, {})
    assert texts == {0: alone(0), 1: alone(1)}
