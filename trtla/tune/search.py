"""The search among the triples of a grid, whose steps show what each accepts.

How many steps a request takes and how many tokens those feed depends on the text alone, not on
batch or speed: a triple decodes its samples together, and a clock is only read to stop in time. The
grid is halved as it goes: all of it on one sample of each category, the better half on more
samples, and with it what lies near the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.bench.arms import EngineArm, Note, Way
from trtla.bench.turns import Batch, Kept, take
from trtla.console import Stages, counted, silent
from trtla.results.bench_documents import Cell, Row
from trtla.settings.lookahead import LookaheadConfig
from trtla.tune import clock
from trtla.tune.grid import Groups, Sample, Steps, as_work, coarse, near, nearness
from trtla.tune.prediction import speed

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

SEARCH_ROUND = 0
"""The round of the search's turns in the journal: those of contests have numbers from 1."""
_COARSE_SHARE = 0.5
"""The share of the search's time for the coarse grid."""
_IN_FLIGHT = 12
"""Requests at a time. What is in flight when a run is killed is lost, so it is not more."""
_LEADERS = 2
"""Triples whose neighbours are tried."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A turn of one triple."""

    triple: LookaheadConfig
    samples: Sequence[Sample]
    arm: EngineArm
    cell: Cell
    batch: Batch


class Search:
    """The arms of a grid of triples, each on its own turns, and which ones to run next.

    Args:
        cell: what all turns are taken under, but for the batch size.
        takes: how many seconds samples take at most which are decoded together with a triple.
    """

    def __init__(
        self,
        llm: LLM,
        groups: Groups,
        limit: LookaheadConfig,
        cell: Cell,
        kept: Kept,
        note: Note,
        stages: Stages = silent,
        takes: Callable[[LookaheadConfig, Sequence[Sample]], float] = lambda *_: 0.0,
    ) -> None:
        self._llm, self._groups, self._limit, self._cell = llm, groups, limit, cell
        self._kept, self._note, self._stages, self._takes = kept, note, stages, takes
        self.found: dict[LookaheadConfig, dict[Sample, Steps]] = {}

    def go(self, predict: Callable[[], list[Row]], deadline: float) -> bool:
        """Search; False: the time was over before.

        Args:
            predict: rows of all that has been found so far.
            deadline: on the clock of `tune.clock`; the smallest triple runs on a sample of each
                category in any case, for otherwise nothing can be said.
        """
        most = max(map(len, self._groups.values()))
        pool, finished = coarse(self._limit), True
        self._run(pool[:1], 1, float("inf"))
        begin = clock.now()
        until = begin + _COARSE_SHARE * (deadline - begin)
        for count in (1, (most + 1) // 2, most):
            finished &= self._run(pool, count, until)
            leaders = _ranked(predict(), pool)[: max(_LEADERS, len(pool) // 2)]
            neighbours = [one for leader in leaders[:_LEADERS] for one in near(leader, self._limit)]
            pool = [*leaders, *(one for one in dict.fromkeys(neighbours) if one not in self.found)]
            until = deadline
        return finished

    def _run(self, triples: Sequence[LookaheadConfig], most: int, deadline: float) -> bool:
        """Run triples on the first samples of each category; False: there was no time for all."""
        firsts = [sample for own in self._groups.values() for sample in own[:most]]
        jobs = [job for triple in triples for job in self._jobs(triple, firsts)]
        tried = {job.triple for job in jobs if not self._is_kept(job)}
        if tried and clock.now() < deadline:
            self._note(
                f"to run on {counted(len(firsts), 'prompt')}: {counted(len(tried), 'triple')}"
            )
        finished = True
        with self._stages("search", "batches") as progress:
            for number, job in enumerate(jobs, 1):
                finished &= self._decode(job, deadline)
                progress(number, len(jobs))
        return finished

    def _jobs(self, triple: LookaheadConfig, samples: Sequence[Sample]) -> Iterator[_Job]:
        """What a triple has not decoded yet."""
        left = [sample for sample in samples if sample not in self.found.get(triple, {})]
        for place in range(0, len(left), _IN_FLIGHT):
            own = left[place : place + _IN_FLIGHT]
            arm = Way(f"lookahead {triple}", triple).arm(self._llm)
            cell = self._cell.model_copy(update={"batch_size": len(own)})
            yield _Job(triple, own, arm, cell, Batch(SEARCH_ROUND, 0, as_work(own)))

    def _is_kept(self, job: _Job) -> bool:
        return self._kept.has(job.cell, job.batch, [job.arm])

    def _decode(self, job: _Job, deadline: float) -> bool:
        """Decode samples together with a triple; False: there is no time for it."""
        left = deadline - clock.now()
        late = left <= 0.0 or self._takes(job.triple, job.samples) > left
        if late and not self._is_kept(job):
            return False
        run = take(job.cell, job.batch, [job.arm], self._kept)[job.arm.label]
        took = self.found.setdefault(job.triple, {})
        counts = zip(job.samples, run.outputs, run.steps_each, run.fed_each, strict=True)
        for sample, output, steps, fed in counts:
            took[sample] = Steps(len(output) - 1, steps, fed or 0)
        return True


def _ranked(rows: Sequence[Row], triples: Sequence[LookaheadConfig]) -> list[LookaheadConfig]:
    """Those that are known, by how near they come to the best of any category and batch size."""
    known = [row for row in rows if row.triple is not None]
    score = nearness({(row.triple, (row.category, row.batch_size)): speed(row) for row in known})
    names = {one: one.as_tuple() for one in triples if one.as_tuple() in score}
    return sorted(names, key=lambda one: score[names[one]], reverse=True)
