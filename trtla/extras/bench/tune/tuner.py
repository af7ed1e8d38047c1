"""One tuning from the opened model to the document: costs, counted steps, rounds.

The budget counts from before the model is opened. Nothing begins that, by the costs of steps, ends
after it; a budget that is too small for the smallest useful measurement is refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from trtla.console import Stages, command_line, duration, silent
from trtla.errors import UsageError
from trtla.extras.bench.documents import EVERY_CATEGORY
from trtla.extras.bench.opened import OpenedModel
from trtla.extras.bench.tune import measuring
from trtla.extras.bench.tune.documents import Tune
from trtla.extras.bench.tune.grid import Sample, Steps, TuneSettings, make_samples, triples_within
from trtla.extras.bench.tune.prediction import AUTO, GPUS, Roofline, predict, ranked, recommend
from trtla.formats.gguf.folder import model_name
from trtla.llm.llm import LLM
from trtla.measuring.arms import AR, EngineArm, Note
from trtla.measuring.turns import CellRuns, rows
from trtla.results.documents import SCHEMA_VERSION, environment
from trtla.results.rows import Cell, Row
from trtla.runtime.costs import CostTable
from trtla.runtime.device import resolve_device
from trtla.runtime.threads import num_threads
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

_SEARCH_SHARE = 0.5
"""The share of the time for counting steps, if rounds follow."""
_BEST, _LEAST_ARMS = 4, 3
"""Triples that are measured, and arms that always are: plain decoding, `auto`, the best triple."""
_MOST_ROUNDS = 15


def tune(
    settings: TuneSettings,
    on_note: Note,
    stages: Stages = silent,
    now: Callable[[], float] = time.monotonic,
) -> Tune:
    """Tune a model and return the document.

    Args:
        now: the clock of the budget.

    Raises:
        UsageError: the smallest useful measurement takes longer than the budget.
    """
    begin = now()
    with LLM(settings.model, settings.options) as llm:
        tuned = _Tuning(settings, llm, on_note, stages, lambda: now() - begin).go()
    return tuned.model_copy(update={"time_s": round(now() - begin, 1)})


class _Tuning:
    def __init__(
        self,
        settings: TuneSettings,
        llm: LLM,
        on_note: Note,
        stages: Stages,
        spent: Callable[[], float],
    ) -> None:
        self._settings, self._llm, self._note, self._stages = settings, llm, on_note, stages
        self._spent, (self._size,) = spent, settings.batch_sizes
        options, sampling = settings.options, settings.sampling
        model = OpenedModel(llm, settings, resolve_device(options.device), options.dtype)
        self._samples = make_samples(settings, model, on_note)
        self._cell = Cell(
            device=str(model.device),
            dtype=model.dtype,
            threads=num_threads(),
            batch_size=self._size,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            category=EVERY_CATEGORY,
            executor=llm.description,
        )
        self._costs = measuring.executor_costs(llm, self._size, self._samples[0])
        self._triples = triples_within(settings.limit)
        self._firsts = self._samples if settings.gpu else self._samples[: len(settings.sets)]
        """The samples of which steps are counted: about one a category if rounds follow."""

    def go(self) -> Tune:
        settings = self._settings
        least = measuring.requests_s(self._costs, self._firsts, self._triples[0])
        self._check_budget(least + (0.0 if settings.gpu else _LEAST_ARMS * self._arm_s()))
        table, note = self._cost_table()
        predicted = predict(self._cell, self._firsts, self._count_steps(), table)
        measured = [] if settings.gpu else self._measure(predicted)
        known = {row.arm for row in measured}
        return Tune(
            schema_version=SCHEMA_VERSION,
            command="tune",
            environment=environment(command_line()),
            settings={"model": model_name(settings.model), "costs": note},
            rows=(*measured, *(row for row in predicted if row.arm not in known)),
            recommendation=recommend(measured or predicted),
        )

    def _check_budget(self, least_s: float) -> None:
        seconds, needed = self._settings.budget_s, self._spent() + least_s
        if needed > seconds:
            raise UsageError(
                f"a budget of {seconds:g} s is too small: the smallest useful measurement takes "
                f"about {duration(math.ceil(needed))} here",
                "raise --budget, or lower --batch-size, --max-output-len or the number of "
                "categories",
            )

    def _cost_table(self) -> tuple[CostTable, str]:
        """Return the costs by which triples are predicted, and where they come from."""
        gpu, samples = self._settings.gpu, self._samples
        if gpu is None:
            return self._costs, f"as auto uses them on {self._llm.description}"
        cached = sum(len(sample.prompt) for sample in samples) // len(samples)
        context = cached + self._settings.sampling.max_output_len // 2
        bound = Roofline(self._llm.engine.config.pretrained_config, GPUS[gpu], context)
        return bound.table(self._size), bound.note

    def _count_steps(self) -> dict[LookaheadConfig, list[Steps]]:
        """Count the steps of triples, smaller ones first; the first is always counted."""
        finished, spent = dict[LookaheadConfig, list[Steps]](), self._spent()
        end = self._settings.budget_s
        if not self._settings.gpu:
            end = min(spent + _SEARCH_SHARE * (end - spent), end - _LEAST_ARMS * self._arm_s())
        with self._stages("search", "triples") as progress:
            for triple in self._triples:
                takes = measuring.requests_s(self._costs, self._firsts, triple)
                if finished and self._spent() + takes > end:
                    tried = f"{len(finished)} of {len(self._triples)} triples"
                    self._note(f"{tried} fit into the budget; raise --budget for more")
                    break
                finished[triple] = measuring.counted_steps(self._llm, triple, self._firsts)
                progress(len(finished), len(self._triples))
        return finished

    def _measure(self, predicted: Sequence[Row]) -> list[Row]:
        """Measure the best triples, `auto` and plain decoding in rounds while there is time."""
        budget_s, longest, arm_s = self._settings.budget_s, 0.0, self._arm_s()
        left, best = budget_s - self._spent() - 2 * arm_s, list[LookaheadConfig]()
        for row in [row for row in ranked(predicted) if row.arm != AR][:_BEST]:
            left -= arm_s / (row.predicted_speedup or 1.0)
            if row.triple and (left >= 0.0 or not best):
                best.append(LookaheadConfig(*row.triple))
        arms = [EngineArm(self._llm, AUTOREGRESSIVE), EngineArm(self._llm, "auto", name=AUTO)]
        arms += [EngineArm(self._llm, triple) for triple in best]
        runs = CellRuns(self._cell, {arm.label: arm for arm in arms}, reseeded=True)
        with self._stages("rounds, as time allows", "rounds") as progress:
            for number in range(1, _MOST_ROUNDS + 1):
                before = self._spent()
                if longest and before + longest > budget_s:
                    self._note(f"rounds within the budget: {number - 1} of {_MOST_ROUNDS}")
                    break
                measuring.take_round(runs, number, self._batches(number - 1))
                longest = max(longest, self._spent() - before)
                progress(number, _MOST_ROUNDS)
        own = {row.arm: row.predicted_speedup for row in predicted}
        return [
            row.model_copy(update={"predicted_speedup": own.get(row.arm)}) for row in rows(runs)
        ]

    def _batches(self, number: int) -> list[list[Sample]]:
        """Return the next batches of a round, which have a sample of each category."""
        size, samples = self._size, self._samples
        count = -(-len(self._settings.sets) // size)
        firsts = [(number * count + i) * size for i in range(count)]
        return [[samples[i % len(samples)] for i in range(at, at + size)] for at in firsts]

    def _arm_s(self) -> float:
        """Return the most seconds of an arm's round, if it is no slower than plain decoding."""
        longest = max(self._samples, key=lambda sample: len(sample.prompt))
        batch, count = [longest] * self._size, len(self._batches(0))
        return count * measuring.requests_s(self._costs, batch, AUTOREGRESSIVE)
