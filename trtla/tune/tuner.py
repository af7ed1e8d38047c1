"""One tuning from the opened model to the document: costs, search, contest, recommendation.

It prints nothing: `on_note` receives how far it is. What is measured goes through `Measurements`.
The budget counts from when the model is open; only the smallest useful measurement may exceed it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from trtla.bench.arms import Note
from trtla.bench.journal import Measurements, engine_facts, fingerprint
from trtla.bench.opened import OpenedModel
from trtla.bench.turns import torch_device
from trtla.console import Stages, command_line, counted, silent
from trtla.llm.llm import LLM
from trtla.results.documents import (
    SCHEMA_VERSION,
    Cost,
    CostRow,
    GridPoint,
    Tune,
    Verified,
    environment,
)
from trtla.runtime.costs import CostPlan, CostTable
from trtla.tune.contest import LEAST_TURNS, Contest, contenders
from trtla.tune.prediction import GPUS, Predictor, Roofline, knee, recommend
from trtla.tune.search import Sample, Search, TuneSettings, make_groups
from trtla.version import __version__

FILE = "measurements.jsonl"
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fed tokens of a sequence that costs are measured for."""
_COST_SHARE = 0.02
"""Of the budget: for what is not needed of a row of the cost table."""
_FEW_TOKENS = 256
"""Of plain decoding of all prompts; the answer from fewer depends on what they happen to be."""
_SEARCH_SHARE = 0.45
"""Of the budget: for the search, where a contest follows."""
_OWN_SHARE = 0.6
"""Of the time that is left, for the contest of a batch size that others follow."""
_BUSY = 1.3
"""Turns of one speed-up that differ by more indicate a busy machine."""


def tune(settings: TuneSettings, on_note: Note, stages: Stages = silent) -> Tune:
    """Tune; the document."""
    started = time.monotonic()
    with LLM(settings.model, settings.options) as llm:
        found = _Tuning(settings, llm, on_note, stages).go()
    return found.model_copy(update={"time_s": round(time.monotonic() - started, 1)})


class _Tuning:
    def __init__(self, settings: TuneSettings, llm: LLM, on_note: Note, stages: Stages) -> None:
        self._settings, self._llm, self._note, self._stages = settings, llm, on_note, stages
        self._begin = time.monotonic()
        options = settings.options
        model = OpenedModel(llm, settings, torch_device(options.device), options.dtype)
        self._groups = make_groups(settings.sets, model, settings.sampling, on_note)
        samples = [one for own in self._groups.values() for one in own]
        if (tokens := sum(one.sampling.max_output_len for one in samples)) < _FEW_TOKENS:
            on_note(
                f"{counted(len(samples), 'prompt')} and {tokens} tokens say little: raise "
                "--num-prompts or --max-output-len"
            )
        key = fingerprint(self._facts(samples))
        self._journal = Measurements(settings.output_dir / FILE, key, "--output-dir")
        if self._journal.entries:
            on_note(f"goes on: {len(self._journal.entries)} measurements are kept from before")
        self._search = Search(llm, self._groups, settings.limit, self._journal, on_note, stages)
        self._cost, table = self._costs(samples)
        self._predictor = Predictor(self._groups, self._search.found, table)

    def _facts(self, samples: list[Sample]) -> dict[str, object]:
        settings = self._settings
        return {
            "engine": engine_facts(self._llm.engine),
            "executor": self._llm.description,
            "limits": str(self._llm.limits),
            "threads": torch.get_num_threads(),
            "samples": [str(sample) for sample in samples],
            "planned": [settings.planned, settings.gpu],
            "versions": [torch.__version__, __version__],
        }

    def _costs(self, samples: list[Sample]) -> tuple[Cost, CostTable]:
        settings = self._settings
        sizes = sorted({1, *settings.batch_sizes})
        cached = sum(len(one.prompt) for one in samples) // len(samples)
        context = cached + settings.sampling.max_output_len // 2
        if settings.gpu is not None:
            config = self._llm.engine.config.pretrained_config
            bound = Roofline(config, GPUS[settings.gpu], context)
            table, source, note = bound.table(sizes), "roofline", bound.note
        else:
            table, source = self._measured_table(sizes, context), "measured"
            threads = counted(torch.get_num_threads(), "thread")
            note = f"forwards on {self._llm.description}, {threads}"
            if settings.planned:
                note += "; TensorRT-LLM's own kernels are faster, and have not been timed"
        rows = tuple(CostRow(sequences=count, points=points) for count, points in table.rows)
        return Cost(source=source, note=note, rows=rows, knee=knee(table)), table

    def _measured_table(self, sizes: list[int], context: int) -> CostTable:
        rows = self._journal.get(f"costs {sizes}")
        if rows is None:
            self._note("the cost curve is measured")
            share = _COST_SHARE * self._settings.budget_s
            plan = CostPlan(tuple(sizes), _SIZES, context=context, row_budget_s=share)
            rows = self._llm.executor.call(lambda executor: executor.measure_costs(plan)).rows
            self._journal.put(f"costs {sizes}", rows)
        return CostTable(tuple((count, tuple((n, s) for n, s in points)) for count, points in rows))

    def go(self) -> Tune:
        settings = self._settings
        end = self._begin + settings.budget_s
        share = 1.0 if settings.planned else _SEARCH_SHARE
        finished = self._search.go(self._rows, self._begin + share * settings.budget_s)
        if not finished:
            self._note("the search's time is over; the same command with a larger --budget goes on")
        rows = self._rows()
        verified = [] if settings.planned else self._verify(rows, end)
        return Tune(
            schema_version=SCHEMA_VERSION,
            command="tune",
            argv=command_line(),
            environment=environment(command_line()),
            engine=settings.engine,
            executor=self._llm.description,
            cost=self._cost,
            grid=tuple(rows),
            verified=tuple(one for one in verified if one.lookahead is not None),
            alternatives=tuple(one for one in verified if one.lookahead is None),
            recommendation=recommend(rows, verified),
            finished=finished,
        )

    def _rows(self) -> list[GridPoint]:
        return self._predictor.rows(self._settings.batch_sizes)

    def _verify(self, rows: list[GridPoint], end: float) -> list[Verified]:
        """A contest for each batch size; the first one, which counts, has most of the time."""
        sizes, contests = self._settings.batch_sizes, list[Contest]()
        for place, size in enumerate(sizes, 1):
            now = time.monotonic()
            until = end if place == len(sizes) else now + (end - now) * _OWN_SHARE
            field = contenders(rows, size)
            contest = Contest(self._llm, self._groups, field, size, self._journal)
            if self._compete(contest, until, first=place == 1):
                contests.append(contest)
            else:
                self._note(f"batch size {size} is predicted only: the budget is small")
        self._note_times(contests, end)
        return [one for contest in contests for one in contest.verified(rows)]

    def _compete(self, contest: Contest, until: float, *, first: bool) -> bool:
        names = ", ".join(one.name for one in contest.field)
        self._note(f"verified in turns, batch size {contest.size}: {names}")
        most = self._settings.rounds
        with self._stages(f"batch size {contest.size}, as time allows", "turns") as progress:
            return contest.go(until, most, lambda: progress(contest.turns, most), needed=first)

    def _note_times(self, contests: Sequence[Contest], end: float) -> None:
        now, first = time.monotonic(), contests[0]
        if now > end and first.turns <= LEAST_TURNS and first.is_least:
            self._note(
                f"the budget of {self._settings.budget_s:g} s is too small: the smallest useful "
                f"measurement takes about {now - self._begin:.0f} s"
            )
        if (scatter := max(one.scatter() for one in contests)) > _BUSY:
            self._note(
                f"turns differ by up to {scatter:.1f}x: the machine is busy, so try a quiet one"
            )
