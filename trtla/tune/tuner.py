"""One tuning from the opened model to the document: costs, search, verification, recommendation.

It prints nothing: `on_note` receives how far it is. All that is measured goes through
`Measurements`. The budget counts from when the model is open; only the smallest useful
measurement may exceed it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count

import torch

from trtla.bench.opened import take_tokenizer
from trtla.console import Stages, command_line, counted, silent
from trtla.data.encoder import Encoder, plain_answers
from trtla.data.prompt_sets import prompt_room
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
from trtla.tune.measurements import Measurements, engine_facts, fingerprint
from trtla.tune.plan import Groups, Sample, TuneSettings, by_category, make_samples
from trtla.tune.prediction import Predictor, knee, recommend
from trtla.tune.roofline import Roofline
from trtla.tune.search import Note, Search
from trtla.tune.verification import (
    LEAST_CONTENDERS,
    LEAST_ROUNDS,
    PLAIN,
    STANDARD_CONTENDERS,
    Contest,
    Rounds,
    contenders,
    decode_s,
    shortened,
    warm_up,
)
from trtla.version import __version__

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fed tokens of a sequence that costs are measured for."""
_COST_SHARE = 0.02
"""Of the budget: for what is not needed of a row of the cost table."""
_FEW_TOKENS = 256
"""Of plain decoding of all prompts; the answer from fewer depends on what they happen to be."""
_PACE_TOKENS = 16
"""What plain decoding writes to see how long it really takes."""
_VERIFY_SHARE = 0.55
"""Of the budget: for verification."""
_BUSY = 1.3
"""Rounds of one speed-up that lie further apart indicate a busy machine."""


def tune(settings: TuneSettings, on_note: Note, stages: Stages = silent) -> Tune:
    """Tune; the document.

    Raises:
        UsageError: prompts, limits or devices do not fit the model.
    """
    started = time.monotonic()
    with LLM(settings.model, settings.options) as llm:
        found = _Tuning(settings, llm, on_note, stages).go()
    return found.model_copy(update={"time_s": round(time.monotonic() - started, 1)})


class _Tuning:
    """The opened model, and what is known of it."""

    def __init__(self, settings: TuneSettings, llm: LLM, on_note: Note, stages: Stages) -> None:
        self._settings, self._llm, self._note, self._stages = settings, llm, on_note, stages
        self._begin = time.monotonic()
        samples = self._samples()
        self._groups: Groups = by_category(samples)
        if (tokens := sum(one.sampling.max_output_len for one in samples)) < _FEW_TOKENS:
            on_note(
                f"{counted(len(samples), 'prompt')} and {tokens} tokens say little: raise "
                "--num-prompts or --max-output-len"
            )
        self._kept = Measurements(settings.output_dir, fingerprint(self._facts(samples)))
        if self._kept.resumed:
            on_note(f"goes on: {self._kept.resumed} measurements are kept from before")
        self._search = Search(llm, self._groups, settings.limit, self._kept, on_note, stages)
        self._cost, table = self._costs(samples)
        self._predictor = Predictor(self._groups, self._search.found, table)

    def _samples(self) -> list[Sample]:
        settings, llm, tokenizer = self._settings, self._llm, take_tokenizer(self._llm)
        ends, llm.end_ids = llm.end_ids, frozenset()  # a text that ends at once shows nothing
        room = prompt_room(llm.limits, settings.sampling.max_output_len)
        encoder = Encoder(tokenizer, settings.asking, room)
        answer = plain_answers(llm, tokenizer, settings.sampling, ends)
        samples = make_samples(settings.sets, encoder, answer, settings.sampling)
        if encoder.cut:
            self._note(f"cut to the model's limits: {counted(encoder.cut, 'prompt')}")
        return samples

    def _facts(self, samples: list[Sample]) -> dict[str, object]:
        """All that a measurement depends on."""
        settings = self._settings
        return {
            "engine": engine_facts(self._llm.engine),
            "executor": self._llm.description,
            "limits": str(self._llm.limits),
            "threads": torch.get_num_threads(),
            "samples": [str(sample) for sample in samples],
            "planned": [settings.planned, settings.gpu and settings.gpu.name],
            "versions": [torch.__version__, __version__],
        }

    def _costs(self, samples: list[Sample]) -> tuple[Cost, CostTable]:
        settings = self._settings
        sizes = sorted({1, *settings.batch_sizes})
        cached = sum(len(one.prompt) for one in samples) // len(samples)
        context = cached + settings.sampling.max_output_len // 2
        if settings.gpu is not None:
            config = self._llm.engine.config.pretrained_config
            bound = Roofline(config, settings.gpu, context)
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
        rows = self._kept.get(f"costs {sizes}")
        if rows is None:
            self._note("the cost curve is measured")
            share = _COST_SHARE * self._settings.budget_s
            plan = CostPlan(tuple(sizes), _SIZES, context=context, row_budget_s=share)
            rows = self._llm.executor.call(lambda executor: executor.measure_costs(plan)).rows
            self._kept.put(f"costs {sizes}", rows)
        return CostTable(tuple((count, tuple((n, s) for n, s in points)) for count, points in rows))

    def go(self) -> Tune:
        """Search, verify, recommend."""
        settings = self._settings
        end = self._begin + settings.budget_s
        reserved = 0.0 if settings.planned else self._reserved_s()
        finished = self._search.go(self._rows, end - reserved)
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

    def _reserved_s(self) -> float:
        """Seconds of the budget that the search leaves for verification.

        Notes where the smallest useful measurement takes longer than the budget.
        """
        size, budget = self._settings.batch_sizes[0], self._settings.budget_s
        once = sum(self._plain_s(own[:1], size) for own in self._groups.values())
        least_s = LEAST_CONTENDERS * self._least_rounds * once
        search_s = 0.0 if self._search.found else once
        total = time.monotonic() - self._begin + search_s + least_s
        if total > budget:
            self._note(
                f"the budget of {budget:g} s is too small: the smallest useful measurement takes "
                f"about {total:.0f} s"
            )
        return max(least_s, _VERIFY_SHARE * budget)

    @property
    def _least_rounds(self) -> int:
        return min(LEAST_ROUNDS, self._settings.rounds)

    def _plain_s(self, samples: Sequence[Sample], size: int) -> float:
        """Seconds of plain decoding: predicted, times what host work and other load add."""
        pace = self._kept.get("pace")
        if pace is None:
            first = self._settings.batch_sizes[0]
            ones = [[shortened(own[0], _PACE_TOKENS)] for own in self._groups.values()]
            warm_up(self._llm, Contest(self._groups, (PLAIN,), first))
            real = sum(decode_s(self._llm, PLAIN, own, first) for own in ones)
            pace = real / sum(self._predictor.plain_s(own, first) for own in ones)
            self._kept.put("pace", pace)
        return float(pace) * self._predictor.plain_s(samples, size)

    def _verify(self, rows: list[GridPoint], end: float) -> list[Verified]:
        """Real requests of the best triples; further batch sizes where there is time."""
        found: list[Rounds] = []
        sizes = self._settings.batch_sizes
        for place, size in enumerate(sizes, 1):
            wanted = Contest(self._groups, contenders(rows, size), size)
            left = end - time.monotonic()
            seconds = left if place == len(sizes) else left / 2
            fitting = wanted.within(seconds, self._plain_s, self._least_rounds)
            if place == 1 and len(fitting.contenders) < STANDARD_CONTENDERS:
                seconds = left
            rounds = self._first_rounds(wanted, seconds, needed=place == 1)
            if rounds is not None:
                found.append(rounds)
        waiting, most = found, self._settings.rounds * len(found)
        with self._stages("further rounds, as time allows", "rounds") as progress:
            while waiting:
                waiting = [one for one in waiting if self._one_more(one, end)]
                progress(sum(one.count for one in found), most)
        if (scatter := max(one.scatter() for one in found)) > _BUSY:
            self._note(
                f"rounds differ by up to {scatter:.1f}x: the machine is busy, so try a quiet one"
            )
        return [one for rounds in found for one in rounds.verified(rows)]

    def _first_rounds(self, wanted: Contest, seconds: float, *, needed: bool) -> Rounds | None:
        """The first rounds of what fits of a contest; None: nothing does, and nothing must."""
        end, least = time.monotonic() + seconds, self._least_rounds
        contest = wanted.within(seconds, self._plain_s, least)
        if not needed and contest.seconds(self._plain_s, least) > seconds:
            self._note(f"batch size {contest.size} is predicted only: the budget is small")
            return None
        warm_up(self._llm, contest)  # `auto` may measure what it needs to know
        contest = contest.within(end - time.monotonic(), self._plain_s, least)
        names = ", ".join(one.name for one in contest.contenders)
        self._note(f"verified in rounds, batch size {contest.size}: {names}")
        rounds = Rounds(self._llm, contest, self._kept)
        total, done = least * len(contest.groups) * len(contest.contenders), count(1)
        with self._stages(f"rounds, batch size {contest.size}", "decodings") as progress:
            for _ in range(least):
                rounds.take(lambda: progress(next(done), total))
        return rounds

    def _one_more(self, rounds: Rounds, end: float) -> bool:
        """One more round, where it is wanted and there is time for it."""
        if rounds.count >= self._settings.rounds or time.monotonic() + rounds.last_s > end:
            return False
        rounds.take()
        return True
