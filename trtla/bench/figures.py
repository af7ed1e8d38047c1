"""Rows of bench's tables: an arm's figures over its rounds.

A figure with a spread is the median over rounds; its `_min` and `_max` stand beside it. Ratios to
`ar` are taken round by round, so that a machine that slows down slows both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING

from trtla.bench.arms import AR, Run
from trtla.results.bench_documents import BenchRow
from trtla.results.metrics import agreement

if TYPE_CHECKING:
    from trtla.bench.opened import Measured

_MEDIANS = ("ttft_ms", "ms_per_token", "host_ms_per_step")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What forwards are held against."""

    weight_bytes: int
    """Read by one forward of an arm that does not report its own."""
    read_bandwidth: float
    """Bytes a second."""

    def gb_per_s(self, run: Run) -> float | None:
        """Weights read a second of forwards, in GB."""
        if not run.forward_s:
            return None
        return (run.weight_bytes or self.weight_bytes) * run.forwards / run.forward_s / 1e9


def rows(measured: Measured, hardware: Hardware) -> list[BenchRow]:
    """One row an arm: the cell, the arm, its figures."""
    return [_row(measured, name, hardware) for name in measured.runs]


def _row(measured: Measured, name: str, hardware: Hardware) -> BenchRow:
    """Counters and what follows from them are those of the first round."""
    runs, plain, arm = measured.runs[name], measured.runs[AR], measured.arms[name]
    ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(runs, plain, strict=True)]
    step, gb_per_s = runs[0].tokens_per_step, _median(runs, hardware.gb_per_s)
    equal = agreement(runs[0], plain[0])
    if not arm.own and measured.cell.temperature > 0.0:  # peers draw other random numbers
        equal |= {"equal_texts": None, "first_divergence": None}
    return BenchRow.fill(
        measured.cell,
        arm,
        runs[0],
        arm=name,
        rounds=len(runs),
        **_spread("tokens_per_s", [run.tokens_per_s for run in runs]),
        **{figure: _median(runs, attrgetter(figure)) for figure in _MEDIANS},
        tokens_per_step=step,
        **_spread("speedup_vs_ar", ratios),
        efficiency=median(ratios) / step,
        read_gb_per_s=gb_per_s,
        share_of_bandwidth=None if gb_per_s is None else gb_per_s * 1e9 / hardware.read_bandwidth,
        peak_memory_mb=max(run.peak_bytes for run in runs) / 1e6,
        **equal,
    )


def _median(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> float | None:
    found = [value for value in map(figure, runs) if value is not None]
    return median(found) if found else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
