"""Which triples are run on the model, most promising first, as long as the time allows.

Three rounds: a coarse grid on one sample of each category, its better half on half of the samples,
then whatever is predicted to be best and not yet known, on all of them. What a run makes known of
smaller triples is replayed after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trtla.settings.lookahead import LookaheadConfig
from trtla.tune.acceptance import Acceptance, Job
from trtla.tune.grid import coarse
from trtla.tune.prediction import Row, best
from trtla.tune.samples import Sample

_MOST_TRIED = 24
"""Triples of the first round."""
_WANTED = 3
"""Triples of each category and batch size that shall be known at the end."""
_REPLAY_SHARE = 0.2

Predict = Callable[[], list[Row]]
Run = Callable[[Sequence[Job], float], bool]
"""Decodes jobs until a deadline; False when it was over before the jobs were."""


class Search:
    """One search.

    Args:
        acceptance: what is known, which grows.
        triples: the grid.
        predict: rows of the whole grid from what is known now.
        run: runs jobs.
        deadline: on time.monotonic's clock.
    """

    def __init__(
        self,
        acceptance: Acceptance,
        triples: Sequence[LookaheadConfig],
        predict: Predict,
        run: Run,
        deadline: float,
    ) -> None:
        self._acceptance, self._triples = acceptance, triples
        self._predict, self._run, self._deadline = predict, run, deadline
        self._started = time.monotonic()

    def go(self) -> bool:
        """Search; False when the time was over before the best were known."""
        self._acceptance.replay(self._triples, self._deadline)  # what the texts alone tell
        rough = self._best_of(coarse(self._triples), _MOST_TRIED)
        groups = self._groups()
        self._jobs(rough, [own[:1] for own in groups], 0.35)
        better = self._best_of(rough, max(1, len(rough) // 2))
        self._jobs(better, [own[: (len(own) + 1) // 2] for own in groups], 0.6)
        while time.monotonic() < self._deadline:
            missing = self._missing()
            if not missing:
                return True
            self._jobs(missing[:1], groups, 1.0)
        return not self._missing()

    def _groups(self) -> list[list[Sample]]:
        by_category: dict[str, list[Sample]] = {}
        for sample in self._acceptance.samples:
            by_category.setdefault(sample.category, []).append(sample)
        return list(by_category.values())

    def _jobs(
        self, triples: Sequence[LookaheadConfig], groups: Sequence[Sequence[Sample]], share: float
    ) -> None:
        """Run triples on samples, until this share of the time is used."""
        until = self._started + share * (self._deadline - self._started)
        jobs = [(triple, sample) for triple in triples for own in groups for sample in own]
        self._run(jobs, until)
        left = max(0.0, until - self._started)
        self._acceptance.replay(self._triples, time.monotonic() + _REPLAY_SHARE * left)

    def _best_of(self, triples: Sequence[LookaheadConfig], most: int) -> list[LookaheadConfig]:
        """Those that come nearest to the best of any category and batch size."""
        scores: dict[LookaheadConfig, float] = {}
        for ranked in self._ranked():
            for row in ranked:
                near = row.predicted_speedup / ranked[0].predicted_speedup
                scores[row.lookahead] = max(near, scores.get(row.lookahead, 0.0))
        return sorted(triples, key=lambda triple: scores[triple], reverse=True)[:most]

    def _ranked(self) -> list[list[Row]]:
        rows = self._predict()
        cells = dict.fromkeys((row.category, row.batch_size) for row in rows)
        return [best(rows, *cell) for cell in cells]

    def _missing(self) -> list[LookaheadConfig]:
        """The best of each cell that are guessed so far, the most wanted first."""
        found: dict[LookaheadConfig, None] = {}
        ranked = self._ranked()
        for rank in range(_WANTED):
            for rows in ranked:
                if rank < len(rows) and rows[rank].acceptance == "interpolated":
                    found[rows[rank].lookahead] = None
        return list(found)
