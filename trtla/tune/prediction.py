"""From steps and what they take to the speed-up of whole requests: plain arithmetic.

A batch starts together and shrinks as its requests end, each after its own number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtla.data.prompt_sets import batches
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.tune.acceptance import Source
from trtla.tune.replay import Steps
from trtla.tune.samples import Sample
from trtla.tune.step_time import StepClock

ALL = "all"
"""The category of all samples together."""

StepsOf = Callable[[LookaheadConfig, Sample], tuple[Steps, Source]]


@dataclass(frozen=True, slots=True)
class Row:
    """What a triple should bring for one category and batch size."""

    lookahead: LookaheadConfig
    category: str
    batch_size: int
    tokens_per_step: float
    fed_per_step: float
    acceptance: Source
    seconds: float
    """Of all samples of the category."""
    predicted_speedup: float


def batch_seconds(clock: StepClock, requests: Sequence[Steps], prompt_tokens: int) -> float:
    """The time of requests that start together, until the last one ends."""
    steps = max(1, sum(one.steps for one in requests))
    fed_each = max(1.0, sum(one.fed for one in requests) / steps)
    total, done = clock.prefill_s(prompt_tokens, len(requests), fed_each), 0
    active = sorted((one for one in requests if one.steps), key=lambda one: one.steps)
    while active:
        total += _stretch_seconds(clock, active, done, active[0].steps)
        done = active[0].steps
        active = [one for one in active if one.steps > done]
    return total


def _stretch_seconds(clock: StepClock, active: Sequence[Steps], start: int, end: int) -> float:
    """Steps [start, end) of requests that all take part, fed as they are in each of them.

    A step of 1 token and one of 9 take longer than two of 5 where up to 5 are free.
    """
    count = len(active)
    usual = sum(one.fed_per_step for one in active) / count
    if not any(one.sizes for one in active):
        return (end - start) * clock.seconds(count, usual, usual)
    return sum(
        clock.seconds(count, sum(one.fed_in(step) for one in active) / count, usual)
        for step in range(start, end)
    )


def category_seconds(
    clock: StepClock, triple: LookaheadConfig, samples: Sequence[Sample], size: int, of: StepsOf
) -> float:
    """The time of a category's samples in batches of this size, one after the other.

    The last batch is filled up with samples from the front, as `trtla bench` does.
    """
    total = 0.0
    for batch in batches(samples, size):
        prompt_tokens = sum(len(sample.prompt) for sample in batch)
        total += batch_seconds(clock, [of(triple, one)[0] for one in batch], prompt_tokens)
    return total


class Predictor:
    """Predicts every triple for every category and batch size.

    Args:
        samples: all of them, category by category.
        clocks: by category.
        of: steps of a triple on a sample.
    """

    def __init__(
        self, samples: Sequence[Sample], clocks: dict[str, StepClock], of: StepsOf
    ) -> None:
        self._clocks, self._of = clocks, of
        self._groups = {
            category: [s for s in samples if s.category == category] for category in clocks
        }

    def rows(self, triples: Sequence[LookaheadConfig], batch_sizes: Sequence[int]) -> list[Row]:
        """Every category alone, and all together where there are several."""
        rows = []
        for size in batch_sizes:
            plain = self._seconds(AUTOREGRESSIVE, size)
            for triple in triples:
                rows += self._of_triple(triple, size, plain)
        return rows

    def _seconds(self, triple: LookaheadConfig, size: int) -> dict[str, float]:
        return {
            category: category_seconds(self._clocks[category], triple, own, size, self._of)
            for category, own in self._groups.items()
        }

    def _of_triple(self, triple: LookaheadConfig, size: int, plain: dict[str, float]) -> list[Row]:
        seconds, groups = self._seconds(triple, size), dict(self._groups)
        if len(groups) > 1:
            groups[ALL] = [sample for own in self._groups.values() for sample in own]
            seconds[ALL] = sum(seconds.values())
        rows = []
        for category, own in groups.items():
            steps, source = self._together(triple, own)
            base = plain.get(category, sum(plain.values()))
            rows.append(
                Row(
                    triple,
                    category,
                    size,
                    steps.tokens_per_step,
                    steps.fed_per_step,
                    source,
                    seconds[category],
                    base / seconds[category],
                )
            )
        return rows

    def _together(self, triple: LookaheadConfig, samples: Sequence[Sample]) -> tuple[Steps, Source]:
        found = [self._of(triple, sample) for sample in samples]
        sources = {source for _, source in found}
        order: tuple[Source, ...] = ("interpolated", "measured", "replayed")
        source = next(one for one in order if one in sources)
        steps = [steps for steps, _ in found]
        return Steps(
            sum(s.tokens for s in steps), sum(s.steps for s in steps), sum(s.fed for s in steps)
        ), source


def best(rows: Sequence[Row], category: str, batch_size: int) -> list[Row]:
    """The rows of a category and batch size, the fastest first; of equals the smaller triple."""
    own = [row for row in rows if row.category == category and row.batch_size == batch_size]
    return sorted(own, key=lambda row: (-row.predicted_speedup, row.lookahead.max_draft_len))
