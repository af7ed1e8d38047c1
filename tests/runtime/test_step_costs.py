"""Steps correct the cost table: a wrong one heals, in both directions, and outliers do no harm."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtla.runtime.auto.fixed import FIXED_COSTS
from trtla.runtime.auto.policy import TreePolicy
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.sampling import SamplingParams

TRUE = CostTable.of([(1, 0.02), (8, 0.022), (16, 0.046), (84, 0.22)])
FLAT = CostTable.of([(1, 0.0175), (2, 0.0178)])  # the start of it, which says 0.023 for 20


def zero():
    """A clock that stands still."""
    return 0.0


def test_without_steps_it_is_the_table():
    costs = StepCosts(TRUE)
    for tokens in (1, 3, 16, 84, 200):
        assert costs.seconds(tokens, 1) == TRUE.seconds(tokens, 1)


def test_steps_teach_what_sizes_like_theirs_take():
    costs = StepCosts(FLAT)
    for _ in range(20):
        for tokens in (1, 16):
            costs.record(tokens, 1, TRUE.seconds(tokens))
    assert costs.seconds(1, 1) == pytest.approx(TRUE.seconds(1), rel=0.02)
    assert costs.seconds(16, 1) == pytest.approx(TRUE.seconds(16), rel=0.02)
    assert costs.seconds(64, 1) > 2.0 * FLAT.seconds(64)  # larger ones are no cheaper than known
    assert costs.seconds(16, 4) == FLAT.seconds(16, 4)


def test_steps_larger_than_any_size_that_is_learnt_teach_the_last_one():
    costs = StepCosts(TRUE)
    before = costs.seconds(1500, 1)
    for _ in range(20):
        costs.record(1500, 1, 2.0 * TRUE.seconds(1500))
    assert costs.knows(1500, 1)
    assert costs.seconds(1500, 1) > before


def test_a_table_that_was_taken_beside_other_work_is_brought_down_as_a_whole():
    costs = StepCosts(CostTable.of([(tokens, 2.0 * s) for tokens, s in TRUE.rows[0][1]]))
    for _ in range(20):
        costs.record(1, 1, TRUE.seconds(1))
    for tokens in (1, 8, 84):
        assert costs.seconds(tokens, 1) == pytest.approx(TRUE.seconds(tokens), rel=0.02)


def test_single_outliers_change_little():
    costs = StepCosts(TRUE)
    for step in range(300):
        slow = 50.0 if step % 60 == 30 else 1.0
        costs.record(1, 1, slow * TRUE.seconds(1))
        costs.record(16, 1, slow * TRUE.seconds(16))
    for tokens in (1, 16):
        assert costs.seconds(tokens, 1) == pytest.approx(TRUE.seconds(tokens), rel=0.1)


def test_what_is_not_fed_any_more_gets_another_chance():
    costs = StepCosts(TRUE)
    for _ in range(20):
        costs.record(16, 1, 4.0 * TRUE.seconds(16))
    assert costs.seconds(16, 1) > 3.0 * TRUE.seconds(16)
    for _ in range(1200):
        costs.record(1, 1, TRUE.seconds(1))
    assert costs.seconds(16, 1) == pytest.approx(TRUE.seconds(16), rel=0.02)


def test_no_step_leads_to_impossible_costs():
    costs, noise = StepCosts(TRUE), random.Random(1)
    for _ in range(2000):
        tokens, count = noise.choice([(1, 1), (2, 1), (5, 2), (3, 3), (84, 1), (900, 4)])
        costs.record(tokens, count, noise.choice([0.0, 1e-9, 0.02, 5.0, 1e9]))
        assert 0.0 < costs.seconds(tokens, count) < 400.0


class Foresight(NoDrafter):
    """A drafter of whose six tokens so many come true: the text counts up."""

    def __init__(self, text, right):
        self._text, self._right = text, right

    def propose(self):
        start = len(self._text)
        return Draft.chain([(start + i) % 97 if i < self._right else 98 for i in range(6)])

    def observe(self, greedy, committed):
        self._text += committed


def decode(believed, true, right, steps):
    """(seconds, tokens) of each step, under a policy that begins with the believed table."""
    return decode_with(TreePolicy(StepCosts(believed), clock=zero, wall=zero), true, right, steps)


def decode_with(policy, true, right, steps):
    shared, text = SharedTrees(100), []
    tree = shared.tree([99], SamplingParams(), ("chain",), True)
    drafter = TreeDrafter(tree, shared, 64, 10**6, others=[Foresight(text, right)])
    drafter.observe((), [0])
    found = []
    for _ in range(steps):
        policy.plan([drafter], 1, 1000)
        draft = drafter.propose()
        fed, count = draft.size, 1 + min(right, len(draft.tokens))
        drafter._accepted = count - 1
        drafter.observe((), [place % 97 for place in range(len(text), len(text) + count)])
        policy.record(fed, 1, 1, count, true.seconds(fed))
        found.append((true.seconds(fed), count))
    return found


def speed(found):
    return sum(tokens for _, tokens in found) / sum(seconds for seconds, _ in found)


STEEP = CostTable.of([(1, 0.02), (2, 0.04), (84, 1.68)])
CHEAP = CostTable.of([(1, 0.02), (84, 0.03)])


@pytest.mark.parametrize("right", [0, pytest.param(1, marks=pytest.mark.deep), 6])
@pytest.mark.parametrize(("believed", "true"), [(CHEAP, STEEP), (STEEP, CHEAP), (FLAT, TRUE)])
def test_after_some_hundred_steps_a_wrong_table_is_as_good_as_a_right_one(believed, true, right):
    wrong = decode(believed, true, right, 1200)[400:]
    informed = decode(true, true, right, 1200)[400:]
    assert speed(wrong) > 0.9 * speed(informed)


SMALL = CostTable.of([(1, 0.0046), (4, 0.0072), (8, 0.0109), (16, 0.02), (64, 0.074)])
"""A model of 135M parameters in 4 bits on a Zen 4."""


@pytest.mark.parametrize("believed", [FIXED_COSTS, SMALL])
@pytest.mark.parametrize("slow_steps", [1, 2, 5, 20])
@pytest.mark.parametrize("fed", [2, 4, 8])
def test_no_machine_that_becomes_faster_makes_drafts_seem_free(believed, slow_steps, fed):
    """As many tokens as fit would be fed, each step many times as long as one without drafts."""
    costs = StepCosts(believed)
    for _ in range(slow_steps):
        costs.record(1, 1, 6.0 * SMALL.seconds(1))
    for _ in range(3):
        costs.record(fed, 1, SMALL.seconds(fed))
    costs.record(1, 1, SMALL.seconds(1))
    for tokens in (16, 64):
        assert costs.seconds(tokens, 1) > 0.6 * SMALL.seconds(tokens)


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_some_twenty_steps_show_what_sizes_cost(factor):
    """Also where the first step with drafts is one that something else made slow."""
    true = CostTable.of([(n, factor * s) for n, s in TRUE.rows[0][1]])
    costs = StepCosts(TRUE)
    for step in range(20):
        tokens = 8 if step % 4 == 1 else 1
        costs.record(tokens, 1, true.seconds(tokens) * (4.0 if step == 1 else 1.0))
    for tokens in (1, 8):
        assert costs.seconds(tokens, 1) == pytest.approx(true.seconds(tokens), rel=0.1)


def test_larger_sizes_than_any_that_was_fed_are_not_taken_for_free():
    costs = StepCosts(TRUE)
    costs.record(1, 1, TRUE.seconds(1))
    costs.record(4, 1, TRUE.seconds(1))
    assert costs.seconds(64, 1) > 0.9 * TRUE.seconds(64)


def noisy(rng, seconds):
    """A step's time beside some other work, which only adds."""
    return seconds * (1.0 + 0.05 * rng.random()) * (3.0 if rng.random() < 0.03 else 1.0)


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("phase", [(1,), (1, 16), (16,), (4, 16, 16, 16, 16, 16, 16, 16)])
@pytest.mark.parametrize("after", [(1,), (1, 16)])
def test_no_phase_of_the_machine_decides_for_good(factor, phase, after):
    """Whatever was fed in it, and whether drafts are fed behind it or one token a step."""
    costs, rng = StepCosts(TRUE), random.Random(5)
    for _ in range(200):
        costs.record(1, 1, noisy(rng, TRUE.seconds(1)))
        costs.record(16, 1, noisy(rng, TRUE.seconds(16)))
    for step in range(300):
        tokens = phase[step % len(phase)]
        costs.record(tokens, 1, factor * noisy(rng, TRUE.seconds(tokens)))
    for step in range(800):
        tokens = after[step % len(after)]
        costs.record(tokens, 1, noisy(rng, TRUE.seconds(tokens)))
    for tokens in (1, 4, 16, 64):
        assert costs.seconds(tokens, 1) == pytest.approx(TRUE.seconds(tokens), rel=0.2)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_steps_of_one_token_scale_the_whole_table_within_some_dozen(factor):
    costs = StepCosts(TRUE)
    for _ in range(60):
        costs.record(1, 1, factor * TRUE.seconds(1))
    for tokens in (1, 4, 16, 64):
        assert costs.seconds(tokens, 1) == pytest.approx(factor * TRUE.seconds(tokens), rel=0.02)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.sampled_from([1, 1, 3]), st.floats(1e-6, 10.0)),
        max_size=60,
    ),
    st.sampled_from([TRUE, FLAT]),
)
def test_more_tokens_never_cost_less_whatever_steps_took(steps, table):
    costs = StepCosts(table)
    for tokens, sequences, seconds in steps:
        costs.record(max(tokens, sequences), sequences, seconds)
    again = StepCosts(table, costs.learnt())
    for sequences in (1, 3):
        for one in (costs, again):
            row = [one.seconds(tokens, sequences) for tokens in range(sequences, 300)]
            assert row == pytest.approx(sorted(row), rel=1e-12)


@pytest.mark.parametrize("sequences", [1, 3])
def test_the_next_process_begins_with_what_several_steps_have_shown(sequences):
    costs, sizes = StepCosts(FLAT), (sequences, 4 * sequences, 16 * sequences)
    for _ in range(3):
        for size in sizes:
            costs.record(size, sequences, 1.2 * TRUE.seconds(size))
    again = StepCosts(FLAT, costs.learnt())
    for size in sizes:
        assert again.seconds(size, sequences) == pytest.approx(costs.seconds(size, sequences))


@pytest.mark.parametrize("times", [0, 3])
def test_a_size_that_one_slow_step_made_dear_is_as_before_in_the_next_process(times):
    """A short run feeds a size once or twice, and cannot find out that other work was to blame."""
    costs = StepCosts(TRUE)
    for _ in range(times):
        for size in (1, 4):
            costs.record(size, 1, 1.2 * TRUE.seconds(size))
    before = costs.learnt()
    busy = StepCosts(TRUE, before)
    expected = [busy.seconds(size, 1) / busy.seconds(1, 1) for size in (2, 4, 8)]
    for size, seconds in ((1, 0.02), (1, 0.02), (4, 0.2)):
        busy.record(size, 1, seconds)
    assert busy.seconds(4, 1) > 1.5 * busy.seconds(1, 1)
    again = StepCosts(TRUE, busy.learnt())
    found = [again.seconds(size, 1) / again.seconds(1, 1) for size in (2, 4, 8)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    "learnt",
    [
        {"1": 7}, {"1": {"plain": 0.1}}, {"1": {"plain": "x", "prices": {"4": True}}},
        {"1": {"plain": float("nan"), "prices": {"4": -1.0, "8": 1e9, "5": 2.0, "16": [1]}}},
    ],
)  # fmt: skip
def test_what_does_not_fit_of_what_was_learnt_is_ignored(learnt):
    costs = StepCosts(TRUE, learnt)
    for tokens in (1, 4, 16):
        assert costs.seconds(tokens, 1) == TRUE.seconds(tokens)


@pytest.mark.parametrize("poisoned", [200.0, 8.0])
def test_sizes_that_were_thought_too_dear_are_found_cheap_by_one_who_feeds_single_tokens(poisoned):
    """Prices that an earlier process kept, of a machine that was busy with drafts alone."""
    busy = StepCosts(CHEAP)
    for tokens in (1, 2, 4, 8, 16, 32):
        for _ in range(40):
            busy.record(1, 1, CHEAP.seconds(1))
            busy.record(tokens, 1, poisoned * CHEAP.seconds(tokens))
    assert busy.seconds(8, 1) > 3.0 * CHEAP.seconds(8)
    policy = TreePolicy(StepCosts(CHEAP, busy.learnt()), clock=zero, wall=zero)
    wrong = decode_with(policy, CHEAP, 1, 1200)
    informed = decode(CHEAP, CHEAP, 1, 1200)[400:]
    assert speed(wrong[600:]) > 0.95 * speed(informed)
