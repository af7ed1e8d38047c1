"""Step costs that no clock changes: with TRTLA_FIXED_COSTS=1, `auto` drafts the same in every run.

Successive requests then take the same steps on any machine, however busy it is. Texts never depend
on costs; numbers of steps and drafts do.
"""

from __future__ import annotations

import os
from itertools import count

from trtla.runtime.auto.policy import TreePolicy
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.costs import CostTable

VARIABLE = "TRTLA_FIXED_COSTS"
FIXED_COSTS = CostTable.of(
    [(1, 0.004), (2, 0.0041), (4, 0.0044), (8, 0.0072), (16, 0.0124), (32, 0.023), (128, 0.09)]
)
"""Seconds by fed tokens, about those of a small quantised model on two cores."""
_PLANNED_S = 2.0**-13
"""Seconds of planning by the fixed clock; sums of it are exact."""


def costs_are_fixed() -> bool:
    """Return True if the environment asks for costs that no clock changes."""
    return os.environ.get(VARIABLE) == "1"


def new_policy(costs: StepCosts, most_nodes: int | None) -> TreePolicy:
    """Return the policy that learns from steps, or the fixed one."""
    return FixedPolicy(costs, most_nodes) if costs_are_fixed() else TreePolicy(costs, most_nodes)


class FixedPolicy(TreePolicy):
    """A policy whose steps take the seconds of its table, and whose planning always takes the
    same."""

    def __init__(self, costs: StepCosts, most_nodes: int | None = None) -> None:
        clock = count(0.0, _PLANNED_S).__next__
        super().__init__(costs, most_nodes, clock, clock)

    def record(self, fed: int, base: int, sequences: int, committed: int, seconds: float) -> None:
        super().record(fed, base, sequences, committed, self._costs.seconds(fed, sequences))
