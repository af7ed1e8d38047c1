"""The time budget of a tuning, and estimates of the time that requests and turns take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtla.console import duration
from trtla.errors import UsageError
from trtla.extras.bench.tune import clock
from trtla.extras.bench.tune.grid import Groups, Sample
from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import LookaheadConfig


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of seconds with the time of its beginning."""

    seconds: float
    begin: float

    @property
    def end(self) -> float:
        return self.begin + self.seconds

    @property
    def left(self) -> float:
        return self.end - clock.now()

    def check(self, least_s: float) -> None:
        """Refuse a budget in which not even the smallest useful measurement ends.

        Args:
            least_s: seconds that this measurement takes from now on.
        """
        if least_s > self.left:
            needed = duration(math.ceil(clock.now() - self.begin + least_s))
            raise UsageError(
                f"a budget of {self.seconds:g} s is too small: the smallest useful measurement "
                f"takes about {needed} here",
                "raise --budget, or lower --batch-size, --max-output-len or the number of "
                "categories; measurements are kept",
            )


def requests_s(
    costs: CostTable, samples: Sequence[Sample], triple: LookaheadConfig, *, at_a_time: int
) -> float:
    """Return the most seconds of requests, `at_a_time` in flight: each step gives a token."""
    steps = max((sample.sampling.max_output_len for sample in samples), default=0)
    rounds = -(-len(samples) // at_a_time)
    prompts = costs.seconds(sum(len(sample.prompt) for sample in samples), 1)
    fed = at_a_time * triple.max_decoding_tokens
    return prompts + rounds * steps * costs.seconds(fed, at_a_time)


def turn_s(costs: CostTable, groups: Groups, size: int, triple: LookaheadConfig) -> float:
    """Return the most seconds that a contender takes for one turn: a batch of every category."""
    batches = ([group[i % len(group)] for i in range(size)] for group in groups.values())
    return sum(requests_s(costs, batch, triple, at_a_time=size) for batch in batches)
