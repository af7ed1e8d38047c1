"""One tuning from the opened model to the document: costs, search, contest, recommendation.

Progress goes to `on_note`, measurements to `Measurements`. The budget counts from before the model
is opened. Once the costs of steps are known, a budget that is too small for the smallest useful
measurement is refused; the rest ends in time by these costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtla.console import Stages, command_line, counted, silent
from trtla.errors import UsageError
from trtla.extras.bench.documents import EVERY_CATEGORY
from trtla.extras.bench.journal import Measurements, engine_facts, fingerprint
from trtla.extras.bench.kept import JournalledTurns
from trtla.extras.bench.opened import OpenedModel
from trtla.extras.bench.tune import clock
from trtla.extras.bench.tune.budget import Budget, requests_s, turn_s
from trtla.extras.bench.tune.contest import LEAST_FIELD, LEAST_TURNS, Contest, contenders
from trtla.extras.bench.tune.documents import Cost, CostRow, Tune
from trtla.extras.bench.tune.grid import Sample, TuneSettings, as_work, coarse, make_groups
from trtla.extras.bench.tune.prediction import AUTO, GPUS, Predictor, Roofline, knee, recommend
from trtla.extras.bench.tune.search import SEARCH_ROUND, Search
from trtla.extras.bench.ways import Way
from trtla.llm.llm import LLM
from trtla.machine import package_version
from trtla.measuring.arms import Note
from trtla.results.documents import SCHEMA_VERSION, environment
from trtla.results.rows import Cell, Row
from trtla.runtime.costs import CostTable, Point, rising
from trtla.runtime.device import resolve_device
from trtla.runtime.executor import Executor
from trtla.runtime.threads import num_threads
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.version import __version__

FILE = "measurements.jsonl"
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fed tokens of a sequence in the cost table."""
_SHOWN = 16
"""Tokens of the text by which the executor learns the costs of steps here."""
_FEW_TOKENS = 256
"""The fewest tokens of all outputs for a recommendation without doubts."""
_SEARCH_SHARE = 0.45
"""The share of the budget for the search, if a contest follows."""
_OWN_SHARE = 0.6
"""The share of the remaining time for a contest, if others follow."""
_GOES_ON = "the same command with a larger --budget resumes"
_BUSY = 1.3
"""Turns of one speed-up that differ by more indicate a busy machine."""


def tune(settings: TuneSettings, on_note: Note, stages: Stages = silent) -> Tune:
    """Tune a model and return the document.

    Raises:
        UsageError: the smallest useful measurement takes longer than the budget.
    """
    budget = Budget(settings.budget_s, clock.now())
    with LLM(settings.model, settings.options) as llm:
        tuned = _Tuning(settings, llm, budget, on_note, stages).go()
    return tuned.model_copy(update={"time_s": round(clock.now() - budget.begin, 1)})


class _Tuning:
    def __init__(
        self, settings: TuneSettings, llm: LLM, budget: Budget, on_note: Note, stages: Stages
    ) -> None:
        self._settings, self._llm, self._note, self._stages = settings, llm, on_note, stages
        self._budget, self._doubts = budget, list[str]()
        options = settings.options
        model = OpenedModel(llm, settings, resolve_device(options.device), options.dtype)
        self._groups = make_groups(settings.sets, model, settings.sampling, on_note)
        sampling = settings.sampling
        self._cell = Cell(
            device=str(model.device),
            dtype=model.dtype,
            threads=num_threads(),
            batch_size=1,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            category=EVERY_CATEGORY,
            executor=llm.description,
        )
        samples = [sample for group in self._groups.values() for sample in group]
        if (tokens := sum(sample.sampling.max_output_len for sample in samples)) < _FEW_TOKENS:
            texts = f"{counted(len(samples), 'prompt')} and {counted(tokens, 'token')}"
            self._doubt(f"{texts} say little", "raise --num-prompts or --max-output-len")
        key = fingerprint(self._facts(samples))
        self._journal = Measurements(settings.output_dir / FILE, key, "--output-dir")
        if self._journal.entries:
            on_note(f"resumed: {len(self._journal.entries)} measurements are kept from before")
        self._sizes = settings.batch_sizes
        self._cost, self._table = self._costs(samples)
        self._kept = JournalledTurns(self._journal)
        self._search = Search(
            llm, self._groups, settings.limit, self._cell, self._kept, on_note, stages, self._takes
        )
        self._predictor = Predictor(self._cell, self._groups, self._search.finished, self._table)

    @property
    def _costs_are_ours(self) -> bool:
        """True: costs are those of this machine, so that times follow from them."""
        return self._settings.gpu is None

    def _takes(self, triple: LookaheadConfig, samples: Sequence[Sample]) -> float:
        if not self._costs_are_ours:
            return 0.0
        return requests_s(self._table, samples, triple, at_a_time=len(samples))

    def _check_budget(self) -> None:
        """Refuse a budget that is too small for the smallest triple and the shortest contest."""
        if not self._costs_are_ours or self._settings.planned:
            return
        size, groups = self._sizes[0], self._groups
        names = [name.split() for name in self._journal.entries]
        rounds = {words[2] for words in names if words[:2] == ["turn", str(size)]}
        taken = rounds - {str(SEARCH_ROUND)}
        turns = max(min(LEAST_TURNS, self._settings.rounds) - len(taken), 0)
        least = turns * LEAST_FIELD * turn_s(self._table, groups, size, AUTOREGRESSIVE)
        if not any(words[0] == "turn" for words in names):
            firsts = [group[0] for group in groups.values()]
            least += self._takes(coarse(self._settings.limit)[0], firsts)
        self._budget.check(least)

    def _facts(self, samples: list[Sample]) -> dict[str, object]:
        settings = self._settings
        return {
            "engine": engine_facts(self._llm.engine),
            "executor": self._llm.description,
            "limits": str(self._llm.limits),
            "threads": num_threads(),
            "samples": [str(sample) for sample in samples],
            "planned": [settings.planned, settings.gpu],
            "versions": [package_version("torch"), __version__],
        }

    def _costs(self, samples: list[Sample]) -> tuple[Cost, CostTable]:
        settings = self._settings
        cached = sum(len(sample.prompt) for sample in samples) // len(samples)
        context = cached + settings.sampling.max_output_len // 2
        if settings.gpu is not None:
            config = self._llm.engine.config.pretrained_config
            bound = Roofline(config, GPUS[settings.gpu], context)
            sizes = sorted({1, *self._sizes})
            table, source, note = bound.table(sizes), "roofline", bound.note
        else:
            table, source = self._executor_table(), "executor"
            threads = counted(num_threads(), "thread")
            note = f"costs that auto uses on {self._llm.description}, {threads}"
            if settings.planned:
                note += "; TensorRT-LLM's own kernels are faster, and have not been timed"
        rows = tuple(CostRow(sequences=count, points=points) for count, points in table.rows)
        return Cost(source=source, note=note, rows=rows, knee=knee(table)), table

    def _executor_table(self) -> CostTable:
        """Return the executor's cost table, after a short text that it measures on this machine."""
        rows = []
        for size in sorted({1, *self._sizes}):
            name = f"costs {size}"
            if self._journal.get(name) is None:
                if size in (1, self._sizes[0]):
                    self._show_steps(size)
                self._journal.put(name, self._points(size))
            rows.append((size, tuple((tokens, s) for tokens, s in self._journal.get(name))))
        return CostTable(tuple(rows))

    def _show_steps(self, size: int) -> None:
        """Let the executor measure steps of `size` sequences."""
        sample = next(iter(self._groups.values()))[0]
        length = min(_SHOWN, sample.sampling.max_output_len)
        short = replace(sample, sampling=replace(sample.sampling, max_output_len=length))
        Way(AUTO, "auto").arm(self._llm).decode(*as_work([short] * size))

    def _points(self, size: int) -> tuple[Point, ...]:
        def seconds(executor: Executor, tokens: int) -> float:
            cost = executor.step_seconds(tokens, size)
            if cost is None:
                raise UsageError(
                    f"{self._llm.description} does not report the costs of steps", "give --gpu"
                )
            return cost

        tokens = [size * each for each in _SIZES]
        costs = self._llm.executor.call(lambda inner: {n: seconds(inner, n) for n in tokens})
        return rising(costs)

    def go(self) -> Tune:
        settings, budget = self._settings, self._budget
        self._check_budget()
        share = 1.0 if settings.planned else _SEARCH_SHARE
        finished = self._search.go(self._predicted, clock.now() + share * budget.left)
        if not finished:
            self._doubt("the search's time was over", _GOES_ON)
        points = self._predicted()
        rows = points if settings.planned else self._verify(points, budget.end)
        return Tune(
            schema_version=SCHEMA_VERSION,
            command="tune",
            argv=command_line(),
            environment=environment(command_line()),
            settings={"model": settings.engine, "executor": self._llm.description},
            cost=self._cost,
            rows=tuple(rows),
            recommendation=recommend(rows),
            finished=finished,
            doubts=tuple(self._doubts),
        )

    def _predicted(self) -> list[Row]:
        return self._predictor.rows(self._sizes)

    def _verify(self, points: list[Row], end: float) -> list[Row]:
        """Hold a contest for each batch size; the first, which counts, gets most of the time."""
        sizes, contests, rows = self._sizes, list[Contest](), list[Row]()
        for number, size in enumerate(sizes, 1):
            now = clock.now()
            until = end if number == len(sizes) else now + (end - now) * _OWN_SHARE
            field = contenders(points, size)
            guess_s = turn_s(self._table, self._groups, size, AUTOREGRESSIVE)
            cell = self._cell.model_copy(update={"batch_size": size})
            contest = Contest(self._llm, self._groups, field, cell, self._kept, self._note, guess_s)
            if self._compete(contest, until, first=number == 1):
                contests.append(contest)
                rows += contest.rows()
            else:
                self._note(f"batch size {size} is predicted only: the budget is small")
                rows += [row for row in points if row.batch_size == size]
        self._note_times(contests)
        return rows

    def _compete(self, contest: Contest, until: float, *, first: bool) -> bool:
        names = ", ".join(way.name for way in contest.field)
        self._note(f"verified in turns, batch size {contest.size}: {names}")
        most = self._settings.rounds
        with self._stages(f"batch size {contest.size}, as time allows", "turns") as progress:
            return contest.go(until, most, lambda: progress(contest.turns, most), needed=first)

    def _note_times(self, contests: Sequence[Contest]) -> None:
        turns = contests[0].turns
        if turns < min(LEAST_TURNS, self._settings.rounds):
            after = f"the budget of {self._budget.seconds:g} s was over after"
            self._doubt(f"{after} {counted(turns, 'turn')}", _GOES_ON)
        if (scatter := max(contest.scatter() for contest in contests)) > _BUSY:
            self._doubt(f"turns differ by up to {scatter:.1f}x", "try a machine that is less busy")

    def _doubt(self, reason: str, hint: str) -> None:
        """Note a reason against the figures, which the document keeps."""
        self._doubts.append(reason)
        self._note(f"{reason}: {hint}")
