"""Timing forwards on machines made of numbers: slow, disturbed, busy, stepwise, warming up."""

from __future__ import annotations

import math
import random

import pytest

from trtla.runtime.auto.probe import measure
from trtla.runtime.costs import CostPlan, CostTable

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def ticks(seconds):
    """Rounded so that sums of them are exact."""
    return round(seconds * 2**20) / 2**20


class Machine:
    """Runs forwards on its own clock.

    Args:
        seconds: what a forward of so many tokens takes.
        disturbed: what its n-th run, counted from 0, takes on top.
    """

    def __init__(self, seconds, disturbed=lambda run: 0.0):
        self._seconds, self._disturbed = seconds, disturbed
        self.wall = self.busy = 0.0
        self.runs = []

    def forward(self, sequences, each):
        own = ticks(self._seconds(sequences * each))
        self.wall += own + ticks(self._disturbed(len(self.runs)))
        self.busy += own
        self.runs.append((sequences, each))

    def clock(self):
        return self.wall, self.busy

    def measure(self, plan):
        return measure(self.forward, plan, self.clock)


def linear(tokens):
    return 0.02 + 0.0025 * tokens


def expected(seconds, table):
    rows = ((count, [tokens for tokens, _ in points]) for count, points in table.rows)
    return CostTable(tuple((n, tuple((t, ticks(seconds(t))) for t in row)) for n, row in rows))


def test_every_size_within_the_limits_is_timed():
    machine = Machine(lambda tokens: 1e-3)
    table = machine.measure(CostPlan((1, 4), (1, 2, 4, 8), 16))
    assert set(machine.runs) == {(1, 1), (1, 2), (1, 4), (1, 8), (4, 1), (4, 2), (4, 4)}
    assert [[n for n, _ in points] for _, points in table.rows] == [[1, 2, 4, 8], [4, 8, 16]]


def test_all_that_a_step_can_feed_is_timed_on_a_slow_machine_with_few_runs():
    """Flat at first, then steep: what comes after the flat part must not be guessed."""

    def seconds(tokens):
        return max(0.3, 0.03 * tokens)

    machine = Machine(seconds)
    plan = CostPlan((1, 4), SIZES, needed=84, max_tokens=200, row_budget_s=0.5)
    table = machine.measure(plan)
    assert [n for n, _ in table.rows[0][1]] == [1, 2, 4, 8, 16, 32, 64, 84]
    assert [n for n, _ in table.rows[1][1]] == [4, 8, 16, 32, 64, 128, 200]
    assert table == expected(seconds, table)
    once = sum(seconds(tokens) for _, row in table.rows for tokens, _ in row)
    assert machine.wall < 1.5 * once


def test_a_fast_machine_takes_its_budget_and_no_more():
    machine = Machine(lambda tokens: 1e-3 + 1e-5 * tokens)
    machine.measure(CostPlan((1,), SIZES, needed=84, row_budget_s=0.05))
    assert 0.04 < machine.wall < 0.2


@pytest.mark.parametrize("seed", range(20))
def test_single_outliers_do_not_reach_the_table(seed):
    noise = random.Random(seed)
    machine = Machine(linear, lambda run: noise.choice([0.0] * 5 + [0.5]))
    table = machine.measure(CostPlan((1,), SIZES, needed=84, row_budget_s=4.0))
    assert table.rows == expected(linear, table).rows


def test_one_that_spoils_all_first_runs_of_a_size_is_found_by_its_neighbours():
    machine = Machine(linear, lambda run: 1.0 if 9 <= run < 12 else 0.0)
    table = machine.measure(CostPlan((1,), SIZES, needed=84, row_budget_s=0.3, sweeps=1))
    assert table.rows == expected(linear, table).rows


def test_what_is_compiled_in_the_first_run_of_each_size_does_not_count():
    seen = set()

    class Compiles(Machine):
        def forward(self, sequences, each):
            self.wall += 2.0 * (each not in seen)
            self.busy += 2.0 * (each not in seen)
            seen.add(each)
            super().forward(sequences, each)

    def flat(tokens):
        return 0.006

    table = Compiles(flat).measure(CostPlan((1,), SIZES, needed=84, row_budget_s=0.5))
    assert table.rows == expected(flat, table).rows
    assert len(table.rows[0][1]) == 9


def test_steps_of_a_processor_stay_steps():
    """Costs that jump at multiples of 16 are real: times rise, and never fall."""

    def seconds(tokens):
        return 0.004 * math.ceil(tokens / 16)

    table = Machine(seconds).measure(CostPlan((1,), SIZES, needed=84))
    assert table == expected(seconds, table)
