"""The measuring engine: arms that take turns on the same work, and the rows of their runs.

All arms decode a batch before the next batch begins, so that a machine that slows down slows all.
Commands that measure differ in their arms, their work and their use of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import TypeVar

from trtla.data.prompt_sets import Ids
from trtla.measuring.arms import AR, Arm, ArmRun
from trtla.measuring.hardware import Hardware, peak_bytes, reset_peak
from trtla.results.metrics import add, agreement
from trtla.results.rows import Cell, Row
from trtla.runtime.device import Device, resolve_device
from trtla.settings.sampling import SamplingParams

AnyArm = TypeVar("AnyArm", bound=Arm)
Work = tuple[Sequence[Ids], Sequence[SamplingParams]]
"""The prompts of a batch with the sampling of each."""


def alternate(
    arms: Sequence[AnyArm], work: Iterable[Work], device: Device
) -> Iterator[tuple[AnyArm, ArmRun]]:
    """Decode each batch by all arms, one after the other, and yield each run as it ends."""
    for prompts, sampling in work:
        for arm in arms:
            reset_peak(device)
            run = arm.decode(prompts, sampling)
            yield arm, replace(run, peak_bytes=peak_bytes(device))


@dataclass(frozen=True, slots=True)
class Batch:
    """The work of a turn, and its position among the others."""

    round: int
    """The number of the round, from 1."""
    index: int
    """Position in the round, from 0."""
    work: Work
    again: int = 0
    """The number of earlier batches of its round with the same work."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A batch that every arm of a cell has decoded."""

    batch: Batch
    runs: dict[str, ArmRun]
    """Runs by the arms' labels, in the order in which they ran."""


@dataclass(slots=True)
class CellRuns:
    """The runs of the arms of a cell."""

    cell: Cell
    arms: dict[str, Arm]
    """Arms by label."""
    turns: list[Turn] = field(default_factory=list)
    settings: dict[str, str | None] = field(default_factory=dict)
    """The settings that arms chose for this cell, by label."""
    reseeded: bool = False
    """True: every round has its own seeds, and so its own texts."""
    plain: str = AR
    """The label of the arm that others are compared with; the first arm if it is missing."""

    def runs(self) -> dict[str, list[ArmRun]]:
        """Return one run a round by label, added up at every call."""
        rounds = [list(group) for _, group in groupby(self.turns, attrgetter("batch.round"))]
        return {
            name: [add(turn.runs[name] for turn in group) for group in rounds] for name in self.arms
        }

    @property
    def base(self) -> str:
        return self.plain if self.plain in self.arms else next(iter(self.arms))

    @property
    def order(self) -> list[str]:
        """The labels of arms in the order in which they ran."""
        return [name for turn in self.turns for name in turn.runs]


OnRound = Callable[[CellRuns, int], None]
"""Called after a round with the runs so far and the round's number, from 1."""
OnRun = Callable[[Arm, ArmRun | None], None]
"""Called after each decoding; None: an arm has warmed up."""


def measure(
    cell: Cell,
    arms: Sequence[Arm],
    batches: Sequence[Batch],
    on_round: OnRound = lambda *_: None,
    on_run: OnRun = lambda *_: None,
    *,
    first: Work | None = None,
) -> CellRuns:
    """Warm every arm up, then take a turn for each batch.

    Args:
        first: the work on which arms warm up; None: the first batch.
    """
    for arm in arms:
        arm.warm_up(*(first or batches[0].work))
        on_run(arm, None)
    seeds = {batch.work[1][0].seed for batch in batches if batch.index == 0}
    measured = CellRuns(cell, {arm.label: arm for arm in arms}, reseeded=len(seeds) > 1)
    device = resolve_device(cell.device)
    for number, group in groupby(batches, key=attrgetter("round")):
        for arm in arms:
            arm.begin_round()
        for batch in group:
            runs = {}
            for arm, run in alternate(arms, [batch.work], device):
                runs[arm.label] = run
                on_run(arm, run)
            measured.turns.append(Turn(batch, runs))
        on_round(measured, number)
    measured.settings = {arm.label: arm.setting for arm in arms}
    return measured


_MEDIANS = ("time_s", "ttft_ms", "ms_per_token", "host_ms_per_step")
Score = Callable[[Sequence[Turn], str], Mapping[str, float | None]]
"""Returns further figures of the texts that an arm wrote in turns."""


def no_scores(turns: Sequence[Turn], label: str) -> Mapping[str, float | None]:
    """Score no texts."""
    return {}


def rows(
    measured: CellRuns,
    hardware: Hardware | None = None,
    score: Score = no_scores,
) -> list[Row]:
    """Return one row an arm. A figure with a spread is the median over rounds, with `_min` and
    `_max` next to it. Ratios to `ar` are taken round by round: a slower machine slows both."""
    runs = measured.runs()
    return [_row(measured, runs, label, hardware, score) for label in measured.arms]


def _row(
    measured: CellRuns,
    all_runs: Mapping[str, Sequence[ArmRun]],
    label: str,
    hardware: Hardware | None,
    score: Score,
) -> Row:
    runs, arm, plain = all_runs[label], measured.arms[label], all_runs[measured.base]
    ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(runs, plain, strict=True)]
    # Counters are those of all rounds if their texts differ.
    whole, base = (add(rounds) if measured.reseeded else rounds[0] for rounds in (runs, plain))
    gb_per_s = hardware and _median(runs, hardware.gb_per_s)
    pairs = [(whole, base)] if measured.reseeded else zip(runs, plain, strict=True)
    # Rounds have the same texts: the one in which most differ counts.
    equal = min((agreement(*pair) for pair in pairs), key=lambda found: found["equal_texts"] or 0)
    if not arm.same_draws and measured.cell.temperature > 0.0:  # peers draw other random numbers
        equal |= {"equal_texts": None, "first_divergence": None}
    draft = whole.draft_model
    return Row.fill(
        measured.cell,
        arm,
        whole,
        arm=arm.name,
        setting=measured.settings.get(label),
        rounds=len(runs),
        **_spread("tokens_per_s", [run.tokens_per_s for run in runs]),
        **{figure: _median(runs, attrgetter(figure)) for figure in _MEDIANS},
        draft_forwards=draft and draft.forwards,
        mean_gamma=draft and draft.mean_gamma,
        mean_entropy=draft and draft.mean_entropy,
        **_spread("speedup_vs_ar", ratios),
        efficiency=median(ratios) / whole.tokens_per_step,
        read_gb_per_s=gb_per_s,
        share_of_bandwidth=hardware and gb_per_s and gb_per_s * 1e9 / hardware.read_bandwidth,
        peak_memory_mb=max(run.peak_bytes for run in runs) / 1e6,
        **equal,
        **score(measured.turns, label),
    )


def _median(runs: Sequence[ArmRun], figure: Callable[[ArmRun], float | None]) -> float | None:
    values = [value for value in map(figure, runs) if value is not None]
    return median(values) if values else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
