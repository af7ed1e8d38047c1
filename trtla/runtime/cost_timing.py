"""How forwards are timed for a cost table: each several times, in doubt more often.

What is timed and the clock come from outside. Whatever else the machine does only adds to a time,
so of each forward the least counts; how far its runs spread says whether the machine was busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from trtla.runtime.cost_table import CostPlan, CostTable, Point, rising

Forward = Callable[[int, int], None]
"""(sequences, fed tokens each): run one such forward to its end."""
Clock = Callable[[], tuple[float, float]]
"""Seconds by the wall, and those for which this thread was on a processor."""

_STEEPEST = 1.3  # what a fed token may cost, against one of the next smaller forward
_FALLING = 1.05  # what a forward may cost, against the next larger one
_ROUNDS = 4  # in which doubtful times are taken again
_CALM_SPREAD = 1.3  # median against least
_CALM_SHARE = 0.7  # of the time for which the thread was on a processor
_TAKES = 3  # that follow a disturbed one


def thread_clock() -> tuple[float, float]:
    """The clock of forwards that this thread computes."""
    return time.perf_counter(), time.thread_time()


def device_clock() -> tuple[float, float]:
    """The clock of forwards that another device computes, for which this thread may wait."""
    now = time.perf_counter()
    return now, now


def measure(forward: Forward, plan: CostPlan, clock: Clock = thread_clock) -> CostTable:
    """Time forwards as planned.

    Returns:
        A table to be taken again where other work disturbed it.
    """
    rows = [_Row(forward, sequences, plan, clock) for sequences in plan.batches]
    for row in rows:
        row.measure()
    found = tuple((row.sequences, row.points()) for row in rows)
    return CostTable(found, 0 if all(row.calm for row in rows) else _TAKES)


class _Row:
    """The forwards of one number of sequences."""

    def __init__(self, forward: Forward, sequences: int, plan: CostPlan, clock: Clock) -> None:
        self.sequences = sequences
        self._forward, self._plan, self._clock = forward, plan, clock
        self._runs: dict[int, list[float]] = {}
        """Seconds by fed tokens of each sequence, sizes rising."""
        self._repeated_s = self._wall_s = self._busy_s = 0.0

    def measure(self) -> None:
        """Time what must be; then larger sizes, further sweeps and what is in doubt.

        A disturbed row takes all of its budget.
        """
        needed = self._plan.top(self.sequences)
        for each in self._plan.sizes_of(self.sequences):
            if each > needed and self._late():
                break
            self._first_runs(each)
        sweeps = 1
        while not self._late() and (sweeps < self._plan.sweeps or not self.calm):
            self._sweep()
            sweeps += 1
        self._settle_doubts()

    def _sweep(self) -> None:
        for each in self._runs:
            for _ in range(self._plan.repeats):
                if self._late():
                    return
                self._run(each)

    def _late(self, budgets: float = 1.0) -> bool:
        return self._repeated_s > budgets * self._plan.row_budget_s

    def _run(self, each: int) -> float:
        wall, busy = self._clock()
        self._forward(self.sequences, each)
        wall_after, busy_after = self._clock()
        seconds = wall_after - wall
        runs = self._runs.setdefault(each, [])
        runs.append(seconds)
        if len(runs) > 1 or self._plausible(each):  # else it warmed up, or compiled something
            self._repeated_s += seconds
            self._wall_s += seconds
            self._busy_s += busy_after - busy
        return seconds

    def _first_runs(self, each: int) -> None:
        """Few runs of a slow forward, but one more than are implausible."""
        spent, budget = 0.0, self._plan.row_budget_s
        for run in range(1, 4 + self._plan.repeats):
            spent += self._run(each)
            slow = spent > budget / (4 if run == 1 else 8)
            if (slow or run > self._plan.repeats) and self._plausible(each):
                return

    def _best(self, each: int) -> float:
        return min(self._runs[each])

    def _plausible(self, each: int) -> bool:
        """A larger forward costs no more than in proportion; the smallest one is run twice."""
        smaller = max((size for size in self._runs if size < each), default=None)
        if smaller is None:
            return len(self._runs[each]) > 1
        return self._best(each) <= _STEEPEST * self._best(smaller) * each / smaller

    def _settle_doubts(self) -> None:
        """Repeat what does not fit its neighbours; on a slow machine not for long."""
        for _ in range(_ROUNDS):
            doubtful = [each for each in self._runs if self._doubtful(each)]
            if not doubtful or self._late(3.0):
                return
            for each in doubtful:
                self._run(each)

    def _doubtful(self, each: int) -> bool:
        larger = min((size for size in self._runs if size > each), default=None)
        falls = larger is not None and self._best(each) > _FALLING * self._best(larger)
        return falls or not self._plausible(each)

    @property
    def calm(self) -> bool:
        """Whether nothing else seems to have run meanwhile."""
        spreads = [median(runs[1:]) / min(runs) for runs in self._runs.values() if len(runs) > 2]
        steady = not spreads or median(spreads) <= _CALM_SPREAD
        return steady and self._busy_s >= _CALM_SHARE * self._wall_s

    def points(self) -> tuple[Point, ...]:
        """(fed tokens over all, seconds)."""
        return rising({self.sequences * each: self._best(each) for each in self._runs})
