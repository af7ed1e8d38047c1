"""Steps correct the cost table: a wrong one heals, in both directions, and outliers do not hurt."""

from __future__ import annotations

import random

import pytest

from trtla.runtime.auto.policy import TreePolicy
from trtla.runtime.costs import CostTable, StepCosts
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.sampling import SamplingParams

TRUE = CostTable.of([(1, 0.02), (8, 0.022), (16, 0.046), (84, 0.22)])
FLAT = CostTable.of([(1, 0.0175), (2, 0.0178)])  # the start of it, which says 0.023 for 20


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
    policy, shared, text = TreePolicy(believed, clock=lambda: 0.0), SharedTrees(100), []
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
