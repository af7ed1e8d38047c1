"""The search among the triples of a grid by the steps that each takes.

The number of steps of a request and of tokens fed in them depends on the text alone, not on batch
or speed: a triple decodes its samples together, and a clock is only read to stop in time. The whole
grid runs on one sample of each category; then the better half runs on more samples, twice, together
with the neighbours of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from trtla.console import Stages, counted, silent
from trtla.extras.bench.tune import clock
from trtla.extras.bench.tune.grid import Groups, Sample, Steps, as_work, coarse, near, nearness
from trtla.extras.bench.tune.prediction import speed
from trtla.extras.bench.ways import Way
from trtla.measuring.arms import EngineArm, Note
from trtla.measuring.turns import Batch, Kept, take
from trtla.results.rows import Cell, Row
from trtla.settings.lookahead import LookaheadConfig

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

SEARCH_ROUND = 0
"""The round of the search's turns in the journal; those of contests are numbered from 1."""
_COARSE_SHARE = 0.5
"""The share of the search's time for the coarse grid."""
_IN_FLIGHT = 12
"""Requests at a time; few, since those in flight are lost if a run is killed."""
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
    """A search that runs triples of a grid, each in its own turns, and chooses the next ones.

    Args:
        cell: the circumstances of all turns, but for the batch size.
        takes: returns the most seconds that samples take which a triple decodes together.
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
        self.finished: dict[LookaheadConfig, dict[Sample, Steps]] = {}

    def go(self, predict: Callable[[], list[Row]], deadline: float) -> bool:
        """Search; False: the time was over before the end.

        Args:
            predict: returns rows of all that is finished so far.
            deadline: on the clock of `tune.clock`; the smallest triple always runs on a sample of
                each category, so that there is something to predict from.
        """
        most = max(map(len, self._groups.values()))
        pool, complete = coarse(self._limit), True
        self._run(pool[:1], 1, float("inf"))
        begin = clock.now()
        until = begin + _COARSE_SHARE * (deadline - begin)
        for count in (1, (most + 1) // 2, most):
            complete &= self._run(pool, count, until)
            leaders = _ranked(predict(), pool)[: max(_LEADERS, len(pool) // 2)]
            near_leaders = (near(leader, self._limit) for leader in leaders[:_LEADERS])
            neighbours = dict.fromkeys(chain.from_iterable(near_leaders))
            pool = [*leaders, *(triple for triple in neighbours if triple not in self.finished)]
            until = deadline
        return complete

    def _run(self, triples: Sequence[LookaheadConfig], most: int, deadline: float) -> bool:
        """Run triples on the first samples of each category; False: there was no time for all."""
        firsts = [sample for group in self._groups.values() for sample in group[:most]]
        jobs = [job for triple in triples for job in self._jobs(triple, firsts)]
        tried = {job.triple for job in jobs if not self._is_kept(job)}
        if tried and clock.now() < deadline:
            self._note(
                f"to run on {counted(len(firsts), 'prompt')}: {counted(len(tried), 'triple')}"
            )
        complete = True
        with self._stages("search", "batches") as progress:
            for number, job in enumerate(jobs, 1):
                complete &= self._decode(job, deadline)
                progress(number, len(jobs))
        return complete

    def _jobs(self, triple: LookaheadConfig, samples: Sequence[Sample]) -> Iterator[_Job]:
        """Yield the turns that a triple has not taken yet."""
        left = [sample for sample in samples if sample not in self.finished.get(triple, {})]
        for start in range(0, len(left), _IN_FLIGHT):
            together = left[start : start + _IN_FLIGHT]
            arm = Way(f"lookahead {triple}", triple).arm(self._llm)
            cell = self._cell.model_copy(update={"batch_size": len(together)})
            yield _Job(triple, together, arm, cell, Batch(SEARCH_ROUND, 0, as_work(together)))

    def _is_kept(self, job: _Job) -> bool:
        return self._kept.has(job.cell, job.batch, [job.arm])

    def _decode(self, job: _Job, deadline: float) -> bool:
        """Decode samples together with a triple; False: there is no time for it."""
        left = deadline - clock.now()
        late = left <= 0.0 or self._takes(job.triple, job.samples) > left
        if late and not self._is_kept(job):
            return False
        run = take(job.cell, job.batch, [job.arm], self._kept)[job.arm.label]
        finished = self.finished.setdefault(job.triple, {})
        counts = zip(job.samples, run.outputs, run.steps_each, run.fed_each, strict=True)
        for sample, output, steps, fed in counts:
            finished[sample] = Steps(len(output) - 1, steps, fed or 0)
        return True


def _ranked(rows: Sequence[Row], triples: Sequence[LookaheadConfig]) -> list[LookaheadConfig]:
    """Order known triples by their nearness to the best of any category and batch size."""
    known = [row for row in rows if row.triple is not None]
    score = nearness({(row.triple, (row.category, row.batch_size)): speed(row) for row in known})
    sizes = {triple: triple.as_tuple() for triple in triples if triple.as_tuple() in score}
    return sorted(sizes, key=lambda triple: score[sizes[triple]], reverse=True)
