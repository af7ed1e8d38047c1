"""The rounds of a benchmark: their batches, their progress, and the rows of single batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain, count, repeat
from operator import attrgetter

from trtla.console import Progress, counted, duration
from trtla.data.prompt_sets import Ids
from trtla.extras.bench.documents import EVERY_CATEGORY, Decoding
from trtla.measuring.arms import AR, Arm, ArmRun, Note
from trtla.measuring.hardware import Hardware
from trtla.measuring.turns import Batch, CellRuns, Score, Work, rows
from trtla.results.rows import Cell
from trtla.settings.sampling import SamplingParams


def together(cells: Sequence[CellRuns]) -> Iterator[CellRuns]:
    """Join cells that differ in their category alone: the rounds that all of these have."""
    groups: dict[Cell, list[CellRuns]] = {}
    for runs in cells:
        shared = runs.cell.model_copy(update={"category": EVERY_CATEGORY})
        groups.setdefault(shared, []).append(runs)
    for cell, members in groups.items():
        last = min(runs.turns[-1].batch.round for runs in members)  # of an interrupted category
        every = chain.from_iterable(runs.turns for runs in members)
        kept = (turn for turn in every if turn.batch.round <= last)
        turns = sorted(kept, key=attrgetter("batch.round"))
        chosen = [runs.settings.items() for runs in members]
        shared_by_all = dict(set[tuple[str, str | None]].intersection(*map(set, chosen)))
        if len(members) > 1:
            yield replace(members[0], cell=cell, turns=turns, settings=shared_by_all)


def rounds_of(
    prompts: Sequence[Sequence[Ids]], sampling: SamplingParams, rounds: int, *, reseed: bool = False
) -> list[Batch]:
    """Return the batches of rounds; request i of a cell has seed + i in every arm and round.

    Args:
        prompts: the prompts of each batch.
        reseed: round i has seed + i instead, the same for all its requests.
    """
    batches = list[Batch]()
    for number in range(rounds):
        seeds = repeat(sampling.seed + number) if reseed else count(sampling.seed)
        works = list[Work]()
        for index, batch in enumerate(prompts):
            work = (batch, [replace(sampling, seed=next(seeds)) for _ in batch])
            batches.append(Batch(number + 1, index, work, works.count(work)))
            works.append(work)
    return batches


def decodings(measured: CellRuns, hardware: Hardware, score: Score) -> Iterator[Decoding]:
    """Yield a row for each arm and turn."""
    for turn in measured.turns:
        prompts, sampling = turn.batch.work
        alone = replace(measured, turns=[turn])
        for row, run in zip(rows(alone, hardware, score), turn.runs.values(), strict=True):
            yield Decoding(
                **dict(row),
                round=turn.batch.round,
                seed=sampling[0].seed,
                prompt=turn.batch.index,
                prompt_tokens=sum(map(len, prompts)),
                finish_reason=run.reasons[0] if run.reasons else None,
                output_sha256=sha256(str(run.outputs).encode()).hexdigest(),
            )


_SLOW, _LONG_S = 3.0, 60.0
"""An arm is announced if it takes this many times as long as the first, and this long in all."""


class Watch:
    """A watch of a benchmark's progress and time, and of arms far slower than plain decoding.

    Args:
        decodings: the number of decodings of each arm in all cells, by label, with warm-ups.
    """

    def __init__(self, decodings: Mapping[str, int], progress: Progress, on_note: Note) -> None:
        self._decodings, self._progress, self._note = decodings, progress, on_note
        self._total = sum(decodings.values())
        self._done, self._seconds = 0, dict[str, float]()
        progress(0, self._total)

    def saw(self, arm: Arm, run: ArmRun | None) -> None:
        """Count a decoding, and announce an arm whose first decoding is slow."""
        self._done += 1
        self._progress(self._done, self._total)
        if run is None or arm.label in self._seconds:
            return
        self._seconds[arm.label] = run.time_s
        takes = {name: s * self._decodings[name] for name, s in self._seconds.items()}
        factor, whole = run.time_s / next(iter(self._seconds.values())), takes[arm.label]
        if factor >= _SLOW and whole >= _LONG_S:
            self._note(
                f"{arm.label} takes about {factor:.0f} times as long as {AR}: about "
                f"{duration(whole)} in all; fewer rounds or prompts take less"
            )
        if len(takes) == len(self._decodings) and sum(takes.values()) >= _LONG_S:
            times = counted(len(takes), "decoding")
            self._note(f"about {duration(sum(takes.values()))} in all, by the first {times}")
