"""One tuning from the opened model to the recommendation: costs, texts, search, verification.

It prints nothing: `on_note` hears how far it is. All that is measured goes through `Measurements`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from trtla.bench.opened import take_tokenizer
from trtla.console import counted
from trtla.errors import TrtlaError
from trtla.llm.llm import LLM
from trtla.llm.open import DEFAULT_LOOKAHEAD
from trtla.runtime.costs import CostPlan, CostTable
from trtla.settings.lookahead import LookaheadConfig
from trtla.tune.acceptance import Acceptance, Job, plain_jobs
from trtla.tune.calibration import BESIDE, Turns, calibrate, looked_at, timed_name, worth_timing
from trtla.tune.contest import Contest, contenders
from trtla.tune.engine_facts import engine_facts
from trtla.tune.grid import grid
from trtla.tune.interpolation import Interpolation
from trtla.tune.measurements import Measurements, fingerprint
from trtla.tune.prediction import ALL, Predictor, Row
from trtla.tune.recommendation import recommend
from trtla.tune.roofline import Roofline
from trtla.tune.samples import Sample, categories, make_samples
from trtla.tune.search import Search
from trtla.tune.settings import Cost, Tuned, TuneSettings
from trtla.tune.step_time import StepClock, StepTime, Timed, knee
from trtla.tune.verification import Verified
from trtla.version import __version__

Note = Callable[[str], None]

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_TEXTS, _COSTS, _LOOKS, _SEARCH = 0.3, 0.04, 0.15, 0.55
"""Shares of the budget: up to there texts are written; for a row of the cost curve; for all looks
at real steps; up to there acceptance is searched. The rest verifies."""
_TURNS = 5
"""Looks at real steps before the search; more are taken beside what is verified."""
_LOOKS_AGAIN = 0.3
"""Share of what the search has left of the budget for those beside: longer, to see late steps of
slow triples as well."""


def tune(settings: TuneSettings, on_note: Note) -> Tuned:
    """Tune.

    Raises:
        UsageError: prompts, limits or devices do not fit the model.
        TrtlaError: the budget was over before a single text was written.
    """
    started = time.monotonic()
    with _open(settings) as llm:
        return _Tuning(settings, llm, on_note, started).go()


def _open(settings: TuneSettings) -> LLM:
    return LLM(
        settings.model,
        lookahead=settings.server,
        tokenizer_dir=settings.tokenizer_dir,
        device=settings.device,
        dtype=settings.dtype,
    )


class _Tuning:
    """The opened model, and what is known of it."""

    def __init__(self, settings: TuneSettings, llm: LLM, on_note: Note, started: float) -> None:
        self._settings, self._llm, self._note, self._started = settings, llm, on_note, started
        samples = self._samples()
        self._kept = Measurements(settings.output_dir, fingerprint(self._facts(samples)))
        if self._kept.resumed:
            on_note(f"goes on: {self._kept.resumed} measurements are kept from before")
        self._begin = time.monotonic()
        self._acceptance = Acceptance(samples, self._kept)
        self._texts(samples)
        self._triples = grid(settings.limit)
        self._sizes = list(settings.batch_sizes)
        self._look_s = _LOOKS * settings.budget_s
        self._contenders: dict[int, Sequence[LookaheadConfig]] = {}
        """By batch size, once they are known: their steps are looked at too."""
        self._steps = Interpolation(self._acceptance)
        self._cost, self._clocks = self._costs()
        self._predictor = Predictor(self._acceptance.samples, self._clocks, self._steps.steps)

    def _samples(self) -> list[Sample]:
        tokenizer, limits = take_tokenizer(self._llm), self._llm.limits
        samples, cut = make_samples(self._settings.sets, tokenizer, limits, self._settings.sampling)
        if cut:
            self._note(f"cut to the model's limits: {counted(cut, 'prompt')}")
        return samples

    def _facts(self, samples: Sequence[Sample]) -> dict[str, object]:
        """All that a measurement depends on."""
        settings = self._settings
        return {
            "engine": engine_facts(self._llm.engine),
            "executor": self._llm.description,
            "limits": str(self._llm.limits),
            "threads": torch.get_num_threads(),
            "samples": [str(sample) for sample in samples],
            "end_ids": sorted(self._llm.end_ids),
            "planned": [settings.planned, settings.gpu and settings.gpu.name],
            "versions": [torch.__version__, __version__],
        }

    def _until(self, share: float) -> float:
        """When this share of the budget is over."""
        return self._begin + share * self._settings.budget_s

    def _texts(self, samples: Sequence[Sample]) -> None:
        """Write the texts; samples that the time was too short for are left out."""
        self._acceptance.run(self._llm, plain_jobs(samples), self._until(_TEXTS))
        done = [sample for sample in samples if sample.name in self._acceptance.known]
        if not done:
            raise TrtlaError(
                f"the budget of {self._settings.budget_s:g} s was over before a text was written",
                "give a larger --budget, or a smaller --max-output-len",
            )
        if len(done) < len(samples):
            left_out = counted(len(samples) - len(done), "prompt")
            self._note(f"the budget is small: {left_out} left out")
        self._acceptance.samples = tuple(done)

    def _by_category(self) -> dict[str, list[Sample]]:
        samples = self._acceptance.samples
        return {
            name: [sample for sample in samples if sample.category == name]
            for name in categories(samples)
        }

    def _costs(self) -> tuple[Cost, dict[str, StepClock]]:
        gpu = self._settings.gpu
        if gpu is not None:
            config = self._llm.engine.config.pretrained_config
            groups = self._by_category()
            clocks = {
                name: Roofline(config, gpu, self._context(own)) for name, own in groups.items()
            }
            bound = Roofline(config, gpu, self._context(self._acceptance.samples))
            table = bound.table([1, *self._sizes])
            return Cost("roofline", bound.note, table, knee(table)), dict(clocks)
        table = self._table()
        self._note("steps of real requests are timed")
        found = self._measured_clocks(table, _TURNS)
        threads = counted(torch.get_num_threads(), "thread")
        what = f"forwards on {self._llm.description}, {threads}"
        if self._settings.planned:
            what += "; TensorRT-LLM's own kernels are faster, and have not been timed"
        return Cost("measured", what, table, knee(table)), found

    def _context(self, samples: Sequence[Sample]) -> int:
        """Mean cached tokens of a step."""
        outputs = (len(self._acceptance.output(sample)) / 2 for sample in samples)
        prompts = sum(len(sample.prompt) for sample in samples)
        return round((prompts + sum(outputs)) / len(samples))

    def _table(self) -> CostTable:
        rows = self._kept.get("costs")
        if rows is None:
            self._note("the cost curve is measured")
            plan = CostPlan(
                tuple(sorted({1, *self._sizes})),
                _SIZES,
                most_tokens=2048,
                context=self._context(self._acceptance.samples),
                row_budget_s=_COSTS * self._settings.budget_s,
                sweeps=3,
                repeats=2,
            )
            rows = self._llm.measure_costs(plan).rows
            self._kept.put("costs", rows)
        return CostTable(tuple((count, tuple((n, s) for n, s in points)) for count, points in rows))

    def _measured_clocks(self, table: CostTable, turns: int) -> dict[str, StepClock]:
        """A clock for each category, from so many looks, and more where there are."""
        groups, first = self._by_category(), self._sizes[0]
        timed = {name: self._look(name, own, table, first, turns) for name, own in groups.items()}
        for size in sorted({1, *self._sizes} - {first}):
            if self._late(0.45, ALL, *groups, size=size) and size in self._sizes:
                self._note(f"batch size {size} is left out: the budget is small")
                self._sizes.remove(size)
                continue
            for name, own in groups.items():
                timed[name] += self._look_at(size, name, own, table, turns)
        return {name: StepTime(table, found or [_bare(table)]) for name, found in timed.items()}

    def _look_at(
        self, size: int, name: str, own: Sequence[Sample], table: CostTable, turns: int
    ) -> list[Timed]:
        """A category's steps in a further batch size; those of all together when it is late."""
        if not self._late(0.3, name, size=size):
            return self._look(name, own, table, size, turns)
        mixed = [one for row in zip(*self._by_category().values(), strict=False) for one in row]
        return self._look(ALL, mixed, table, size, turns)

    def _late(self, share: float, *names: str, size: int) -> bool:
        """Whether this share of the budget is over, and none of these was timed before."""
        timed = any(self._kept.names(timed_name(name, size)) for name in names)
        return not timed and time.monotonic() > self._until(share)

    def _look(
        self,
        name: str,
        samples: Sequence[Sample],
        table: CostTable,
        size: int,
        count: int,
        kind: str = "turn",
    ) -> list[Timed]:
        """Real steps of a batch size."""
        timed = looked_at(self._settings.limit)
        triples = worth_timing(timed, table, size)
        if size == self._sizes[0]:  # where the default is verified
            triples += [triple for triple in timed[-1:] if triple not in triples]
        triples += [one for one in self._contenders.get(size, ()) if one not in triples]
        looks = _TURNS * len(triples) * len(self._sizes) * len(self._by_category())
        limit_s = self._look_s / looks
        deadline = time.monotonic() + limit_s * len(triples) * count
        turns = Turns(count, limit_s, deadline, kind)
        return calibrate(self._llm, name, samples, triples, size, self._kept, turns)

    def _beside(self, size: int) -> Callable[[str, int], None]:
        """Looks at a category's steps beside each round that it is verified in."""
        groups, table = self._by_category(), self._cost.table
        left = self._until(1.0) - time.monotonic()
        self._look_s = max(self._look_s, _LOOKS_AGAIN * left)

        def look(category: str, number: int) -> None:
            self._look(category, groups[category], table, size, number + 1, BESIDE)

        return look

    def _clocks_now(self) -> dict[str, StepClock]:
        """The clocks with all looks so far."""
        self._clocks.update(self._measured_clocks(self._cost.table, 0))
        return self._clocks

    def go(self) -> Tuned:
        """Search, verify, recommend."""
        finished = self._search()
        if not finished:
            self._note("the budget is over; the same command with a larger --budget goes on")
        rows, verified = self._rows(), list[Verified]()
        if not self._settings.planned:
            verified = self._verify(rows)
            rows = self._rows()
        return Tuned(
            self._llm.description,
            self._cost,
            tuple(rows),
            tuple(verified),
            recommend(rows, verified),
            time.monotonic() - self._started,
            finished,
        )

    def _search(self) -> bool:
        until = self._until(1.0 if self._settings.planned else _SEARCH)  # nothing to verify
        return Search(self._acceptance, self._triples, self._rows, self._run, until).go()

    def _run(self, jobs: Sequence[Job], deadline: float) -> bool:
        left = [job for job in jobs if self._acceptance.get(*job) is None]
        if left:
            triples = counted(len({triple for triple, _ in left}), "triple")
            prompts = counted(len({sample.name for _, sample in left}), "prompt")
            self._note(f"to run on {prompts}: {triples}")
        return self._acceptance.run(self._llm, left, deadline)

    def _rows(self) -> list[Row]:
        self._steps.learn(self._triples)
        return self._predictor.rows(self._triples, self._sizes)

    def _verify(self, rows: Sequence[Row]) -> list[Verified]:
        """Real requests of the best triples, batch size by batch size while there is time."""
        contests = {size: self._contest(rows, size) for size in self._sizes}
        left = max(0.0, self._until(1.0) - time.monotonic()) / len(contests)
        for size, contest in contests.items():
            contest.prepare(self._clocks, left)
            self._contenders[size] = contest.triples
        for size, chosen in self._contenders.items():
            if self._kept.get(self._chosen_name(size)) is None:
                self._kept.put(self._chosen_name(size), [str(triple) for triple in chosen])
        verified: list[Verified] = []
        for place, (size, contest) in enumerate(contests.items(), 1):
            if place > 1 and time.monotonic() > self._until(1.0):
                break
            self._note(
                f"verified in turns, batch size {size}: {', '.join(map(str, contest.triples))}"
            )
            share = _SEARCH + (1.0 - _SEARCH) * place / len(contests)
            verified += contest.run(
                self._llm,
                self._kept,
                self._settings.rounds,
                self._until(share),
                self._beside(size),
                self._clocks_now,
            )
            if contest.disturbed:
                self._note(
                    f"rounds differ by up to {contest.scatter:.1f}x: the machine is busy, and a "
                    "quiet one would tell more"
                )
        return verified

    def _contest(self, rows: Sequence[Row], size: int) -> Contest:
        groups = self._by_category()
        kept = self._kept.get(self._chosen_name(size))
        default = size == self._sizes[0] and DEFAULT_LOOKAHEAD.fits(self._settings.limit)
        triples = (
            [LookaheadConfig.parse(one) for one in kept]
            if kept is not None
            else contenders(rows, list(groups), size, default=default)
        )
        return Contest(
            triples, size, groups, self._steps.steps, self._acceptance.output, self._know
        )

    def _chosen_name(self, size: int) -> str:
        """Contenders stay the same for as long as no more is known of triples."""
        return f"contenders {size} {len(self._kept.names('run '))}"

    def _know(self, triples: Sequence[LookaheadConfig], samples: Sequence[Sample]) -> None:
        """Run what is verified and still guessed: a prediction is held against its own triple."""
        self._run([(one, sample) for one in triples for sample in samples], float("inf"))
        self._steps.learn(self._triples)


def _bare(table: CostTable) -> Timed:
    """A step as the table has it, where no text is long enough to see one."""
    seconds = table.seconds(1)
    return Timed(1, 1.0, seconds, seconds, seconds, 1.0)
