"""Real requests of many triples, for how many steps they take and how many tokens those feed.

That depends on the text alone, not on batch or speed: triples share in-flight batches, and a clock
is only read to stop in time. The grid is halved as it goes: all of it on one sample of each
category, the better half on more samples, and with it what lies near the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

from trtla.bench.arms import Note
from trtla.bench.journal import Measurements
from trtla.console import Stages, counted, silent
from trtla.results.documents import GridPoint
from trtla.results.metrics import Metrics
from trtla.settings.drafting import LOOKAHEAD
from trtla.settings.lookahead import LookaheadConfig
from trtla.tune.plan import Groups, Sample, coarse, near
from trtla.tune.prediction import Steps, nearness

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

_COARSE_SHARE = 0.5
"""Of the search's time, for the coarse grid."""
_IN_FLIGHT = 12
"""Requests at a time. What is in flight when the time is over is lost, so it is not more."""
_LEADERS = 2
"""Triples whose neighbours are tried."""

Job = tuple[LookaheadConfig, Sample]


class Search:
    """Finished requests of triples, and which ones to run next.

    Args:
        groups: the samples by category.
        limit: the largest triple.
        journal: where finished requests are kept; those there are not run again.
    """

    def __init__(
        self,
        llm: LLM,
        groups: Groups,
        limit: LookaheadConfig,
        journal: Measurements,
        note: Note,
        stages: Stages = silent,
    ) -> None:
        self._llm, self._groups, self._limit, self._journal = llm, groups, limit, journal
        self._note, self._stages = note, stages
        self.found: dict[LookaheadConfig, dict[Sample, Steps]] = {}
        by_name = {sample.name: sample for own in groups.values() for sample in own}
        for name, value in journal.entries.items():
            kind, _, job = name.partition(" ")
            triple, _, sample = job.partition(" ")
            if kind == "run" and sample in by_name:
                self._take((LookaheadConfig.parse(triple), by_name[sample]), Steps(*value))

    def go(self, predict: Callable[[], list[GridPoint]], deadline: float) -> bool:
        """Search; False: the time was over before.

        Args:
            predict: rows of all that has been found so far.
            deadline: on time.monotonic's clock; the smallest triple runs on a sample of each
                category in any case, for otherwise nothing can be said.
        """
        most = max(map(len, self._groups.values()))
        pool, finished = coarse(self._limit), True
        firsts = {own[0] for own in self._groups.values()}
        if not any(firsts <= ran.keys() for ran in self.found.values()):
            self._run(pool[:1], 1, float("inf"))
        begin = time.monotonic()
        until = begin + _COARSE_SHARE * (deadline - begin)
        for count in (1, (most + 1) // 2, most):
            finished &= self._run(pool, count, until)
            leaders = _ranked(predict(), pool)[: max(_LEADERS, len(pool) // 2)]
            neighbours = [one for leader in leaders[:_LEADERS] for one in near(leader, self._limit)]
            pool = [*leaders, *(one for one in dict.fromkeys(neighbours) if one not in self.found)]
            until = deadline
        return finished

    def _run(self, triples: Sequence[LookaheadConfig], most: int, deadline: float) -> bool:
        """Run triples on the first samples of each category; what takes too long is given up."""
        firsts = [sample for own in self._groups.values() for sample in own[:most]]
        jobs = [(triple, sample) for triple in triples for sample in firsts]
        jobs = [job for job in jobs if not self._knows(job)]
        tried = len(dict.fromkeys(triple for triple, _ in jobs))
        if jobs and time.monotonic() < deadline:
            self._note(f"to run on {counted(len(firsts), 'prompt')}: {counted(tried, 'triple')}")
        with self._stages("search", "requests") as progress:
            for start in range(0, len(jobs), _IN_FLIGHT):
                batch = jobs[start : start + _IN_FLIGHT]
                self._decode(
                    batch, deadline, lambda: progress(sum(map(self._knows, jobs)), len(jobs))
                )
        return all(map(self._knows, jobs))

    def _decode(self, jobs: Sequence[Job], deadline: float, on_end: Callable[[], None]) -> None:
        """Run jobs in one in-flight batch."""
        if time.monotonic() > deadline:
            return
        chunks = self._llm.stream(
            [sample.prompt for _, sample in jobs],
            [sample.sampling for _, sample in jobs],
            [triple for triple, _ in jobs],
            drafter=LOOKAHEAD,
        )
        for chunk in chunks:
            if chunk.completion is not None:
                took, (triple, sample) = Metrics.of([chunk.completion], 0.0), jobs[chunk.index]
                steps = Steps(took.output_tokens - 1, took.steps, took.fed or 0)
                self._journal.put(f"run {triple} {sample.name}", astuple(steps))
                self._take((triple, sample), steps)
                on_end()
            if time.monotonic() > deadline:
                return

    def _knows(self, job: Job) -> bool:
        return job[1] in self.found.get(job[0], {})

    def _take(self, job: Job, steps: Steps) -> None:
        self.found.setdefault(job[0], {})[job[1]] = steps


def _ranked(rows: Sequence[GridPoint], triples: Sequence[LookaheadConfig]) -> list[LookaheadConfig]:
    """Those that are known, by how near they come to the best of any category and batch size."""
    score = nearness(
        {
            (LookaheadConfig(*row.lookahead), (row.category, row.batch_size)): row.predicted_speedup
            for row in rows
        }
    )
    return sorted((one for one in triples if one in score), key=score.__getitem__, reverse=True)
