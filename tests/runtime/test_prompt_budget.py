"""Steps with prompts beside running texts: how many prompt tokens they have, and whose.

What steps take is made up here: so much for a step, and so much for each token of a prompt.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toys import sequence
from trtla.runtime.blocks import TOKENS_PER_BLOCK, BlockPool
from trtla.runtime.draft import NO_DRAFT
from trtla.runtime.limits import MAX_CHUNK
from trtla.runtime.loop.prompt_budget import FIRST_TOKENS, SLOWEST
from trtla.runtime.loop.scheduler import Scheduler
from trtla.runtime.sequence import Feed

LONG = 100_000


class Machine:
    """A scheduler, and steps that take what they would take somewhere."""

    def __init__(self, plain=1.0, token=0.01, most=8192):
        self.scheduler = Scheduler(8, most, BlockPool(1 << 16), bounded=True)
        self.plain, self.token = plain, token
        self.slow = 1.0
        """A factor of the next step, and that one alone."""

    def submit(self, prompt_len, index=0, count=10_000):
        """A request, plainly decoded."""
        one = sequence(prompt_len, index, (1, 1, 0), count)
        self.scheduler.add(one)
        return one

    def step(self):
        """Feed what is planned: the prompt tokens by request, and the seconds."""
        plan = self.scheduler.next()
        steps = [Feed(one, (1,), (0,), NO_DRAFT) for one in plan.generation]
        feeds = [*plan.prompts, *steps]
        for chunk in plan.prompts:
            chunk.sequence.num_cached += chunk.length
            if chunk.rows:
                chunk.sequence.output_ids.append(1)
        for one in plan.generation:
            one.output_ids.append(1)
            one.num_cached += 1
        fed = {chunk.sequence.request.request_id: chunk.length for chunk in plan.prompts}
        seconds = self.slow * (self.plain * bool(plan.generation) + self.token * sum(fed.values()))
        self.slow = 1.0
        self.scheduler.stepped(feeds, seconds)
        return fed, seconds

    def steps(self, count):
        """Prompt tokens of that many steps, and their seconds; steps without any left out."""
        found = [self.step() for _ in range(count)]
        return [(sum(fed.values()), seconds) for fed, seconds in found if fed]


def busy(plain=1.0, token=0.01):
    """One text that is being written, then a prompt without an end."""
    machine = Machine(plain, token)
    machine.submit(5)
    for _ in range(4):
        machine.step()
    machine.submit(LONG, 1)
    return machine


@pytest.mark.parametrize(("plain", "token"), [(1.0, 0.01), (0.02, 1e-4), (0.5, 0.001), (3.0, 0.05)])
def test_steps_take_a_few_times_what_they_take_without_prompts(plain, token):
    machine = busy(plain, token)
    begun, settled = machine.steps(3), machine.steps(60)[-20:]
    assert begun[0][0] == FIRST_TOKENS
    wanted = (SLOWEST - 1.0) * plain / token
    assert all(0.9 * wanted <= tokens <= wanted + 1 for tokens, _ in settled)
    assert all(seconds <= 1.01 * SLOWEST * plain for _, seconds in settled)


def test_no_step_takes_twice_the_tokens_that_were_tried():
    """Here the first steps seem to cost nothing: 100 tokens fit beside a text, and then no more."""
    machine = busy(token=0.0)
    tokens = [fed for fed, _ in machine.steps(30)]
    assert all(after <= 2 * before for before, after in pairwise(tokens))
    assert tokens[-1] > 10 * tokens[0]


def test_a_prompt_gets_a_block_of_tokens_at_least():
    machine = busy(token=1.0)
    assert {tokens for tokens, _ in machine.steps(40)[-20:]} == {TOKENS_PER_BLOCK}


def test_single_slow_steps_change_nothing():
    machine = busy()
    settled = machine.steps(60)[-1][0]
    for _ in range(4):
        machine.slow = 50.0
        machine.step()
        assert {tokens for tokens, _ in machine.steps(8)} == {settled}


def test_where_nothing_is_written_steps_take_about_a_second():
    """Requests that come meanwhile wait for no more than that, however many prompts there are."""
    for token_s, expected in ((0.01, 100), (0.001, 1000), (1e-5, MAX_CHUNK)):
        machine = Machine(plain=0.0, token=token_s)
        machine.submit(5000, 0)
        machine.submit(5000, 1)
        machine.step()
        read = machine.step()[0]
        assert sum(read.values()) == pytest.approx(expected, abs=1)


def test_what_a_step_takes_without_prompts_is_measured_anew_where_they_never_pause():
    machine = busy()
    machine.steps(60)
    machine.plain = 4.0  # the text has become long
    assert 3.9 / 4 <= machine.steps(200)[-1][0] * machine.token / (3 * machine.plain) <= 1.0


def test_the_oldest_prompt_gets_half_and_the_shortest_go_before_others():
    machine = busy()
    machine.steps(60)
    machine.submit(400, 2)
    machine.submit(30, 3)
    machine.submit(90, 4)
    first, second = machine.step()[0], machine.step()[0]
    whole = sum(first.values())
    assert first == {1: whole // 2, 3: 30, 4: 90, 2: whole - whole // 2 - 120}
    assert second[1] == whole // 2
    assert second[2] == whole - whole // 2


def test_what_others_leave_is_the_oldest_prompts():
    machine = busy()
    whole = machine.steps(60)[-1][0]
    machine.submit(20, 2)
    assert machine.step()[0] == {1: whole - 20, 2: 20}


def test_steps_are_as_large_as_they_can_be_unless_asked_otherwise():
    scheduler = Scheduler(8, 8192, BlockPool(1 << 16))
    scheduler.add(sequence(5, 0))
    scheduler.add(sequence(3000, 1))
    text = scheduler.next().prompts[0].sequence
    text.output_ids, text.num_cached = [1], 5
    plan = scheduler.next()
    assert plan.generation == [text]
    assert [chunk.length for chunk in plan.prompts] == [MAX_CHUNK]


@examples(100)
@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=7),
    st.integers(1, 60),
    st.integers(32, 400),
    st.floats(0.001, 3.0),
)
def test_every_prompt_is_read_and_the_oldest_gets_its_half(prompts, count, most, token):
    machine = Machine(1.0, token, most)
    texts = [machine.submit(1, 100, 10_000)]
    machine.step()
    texts += [machine.submit(length, index) for index, length in enumerate(prompts)]
    for _ in range(count):
        waiting = [one for one in texts if not one.output_ids]
        left = {one.request.request_id: len(one.prompt) - one.num_cached for one in waiting}
        fed, _ = machine.step()
        if not fed:
            continue
        oldest = next(iter(left))
        assert sum(fed.values()) <= most
        assert fed[oldest] >= min(left[oldest], sum(fed.values()) / 2)
        others = sorted((key for key in left if key != oldest), key=lambda key: (left[key], key))
        read = [fed.get(key, 0) == left[key] for key in others]
        assert read == sorted(read, reverse=True)  # who is not read whole holds up those behind it
    machine.steps(20_000 // TOKENS_PER_BLOCK + 200)
    assert all(one.output_ids for one in texts)
