"""Measurements on this machine: the costs of steps, the steps of triples, arms in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtla.errors import UsageError
from trtla.extras.bench.tune.grid import Sample, Steps
from trtla.llm.llm import LLM
from trtla.measuring.arms import EngineArm
from trtla.measuring.turns import Batch, CellRuns, Turn, Work, alternate
from trtla.runtime.costs import CostTable, Point, rising
from trtla.runtime.device import resolve_device
from trtla.runtime.executor import Executor
from trtla.settings.lookahead import LookaheadConfig

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fed tokens of a sequence in the cost table."""
_SHOWN = 16
"""Tokens of the text by which the executor learns the costs of steps here."""


def executor_costs(llm: LLM, size: int, sample: Sample) -> CostTable:
    """Return the executor's cost table, after short texts that it measures on this machine."""
    length, rows = (
        min(_SHOWN, sample.sampling.max_output_len),
        list[tuple[int, tuple[Point, ...]]](),
    )
    short = sample._replace(sampling=replace(sample.sampling, max_output_len=length))
    for count in sorted({1, size}):
        EngineArm(llm, "auto").decode(*as_work([short] * count))
        rows.append((count, _points(llm, count)))
    return CostTable(tuple(rows))


def _points(llm: LLM, count: int) -> tuple[Point, ...]:
    def costs(inner: Executor) -> dict[int, float | None]:
        return {count * each: inner.step_seconds(count * each, count) for each in _SIZES}

    found = llm.executor.call(costs)
    known = {tokens: seconds for tokens, seconds in found.items() if seconds is not None}
    if not known:
        unknown = f"{llm.description} does not report the costs of steps"
        raise UsageError(unknown, "compare triples with trtla bench --lookahead")
    return rising(known)


def requests_s(costs: CostTable, samples: Sequence[Sample], triple: LookaheadConfig) -> float:
    """Return the most seconds of requests decoded together: each step gives a token."""
    count, steps = len(samples), max(sample.sampling.max_output_len for sample in samples)
    prompts = costs.seconds(sum(len(sample.prompt) for sample in samples), 1)
    return prompts + steps * costs.seconds(count * triple.max_decoding_tokens, count)


def as_work(samples: Sequence[Sample]) -> Work:
    """Return samples as the work of a turn."""
    return [sample.prompt for sample in samples], [sample.sampling for sample in samples]


def counted_steps(llm: LLM, triple: LookaheadConfig, samples: Sequence[Sample]) -> list[Steps]:
    """Return the steps of samples that a triple decodes together."""
    run = EngineArm(llm, triple).decode(*as_work(samples))
    counts = zip(run.outputs, run.steps_each, run.fed_each, strict=True)
    return [Steps(len(output) - 1, steps, fed or 0) for output, steps, fed in counts]


def take_round(runs: CellRuns, number: int, batches: Sequence[Sequence[Sample]]) -> None:
    """Add a round to the runs of arms: all decode each batch, one after the other."""
    arms = list(runs.arms.values())
    for arm in arms:
        arm.begin_round()
    for index, batch in enumerate(map(as_work, batches)):
        found = alternate(arms, [batch], resolve_device(runs.cell.device))
        runs.turns.append(Turn(Batch(number, index, batch), {a.label: run for a, run in found}))
