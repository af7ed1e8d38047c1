"""Figures of an arm from its runs: plain arithmetic, under the names that all outputs use.

A figure with a spread is the median over rounds; its `_min` and `_max` stand beside it. Ratios to
`ar` are taken round by round, so that a machine that slows down slows both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import median
from typing import TYPE_CHECKING, Any

from trtla.bench.arms import AR, Run
from trtla.data.prompt_sets import Ids
from trtla.results.run import distinct_4grams, first_difference
from trtla.runtime.request import FinishReason
from trtla.runtime.stats import accepted_per_pos

if TYPE_CHECKING:
    from trtla.bench.rounds import Measured


@dataclass(frozen=True, slots=True)
class Hardware:
    """What forwards are held against."""

    weight_bytes: int
    """Read by one forward of an arm that does not know better."""
    read_bandwidth: float
    """Bytes a second."""


def tokens_per_s(run: Run) -> float:
    """Output tokens over the whole time, prompt passes included."""
    return run.output_tokens / run.wall_s


def ms_per_token(run: Run) -> float | None:
    """Milliseconds a request waits for each token after its first one."""
    after = run.output_tokens - len(run.outputs)
    waited = sum(last - first for first, last in zip(run.first_s, run.last_s, strict=True))
    return 1000.0 * waited / after if after else None


def ttft_ms(run: Run) -> float:
    """Mean milliseconds until the first token."""
    return 1000.0 * sum(run.first_s) / len(run.first_s)


def tokens_per_step(run: Run) -> float:
    """S: tokens after the first over steps; 1.0 before any step."""
    return (run.output_tokens - len(run.outputs)) / run.steps if run.steps else 1.0


def run_accepted_per_pos(run: Run) -> list[float] | None:
    """Item i: in how many of all steps a draft was accepted at depth i + 1."""
    return None if run.accepted_lengths is None else accepted_per_pos(run.accepted_lengths)


def fed_per_step(run: Run) -> float | None:
    """Tokens that a request feeds in a step."""
    return run.fed / run.steps if run.fed is not None and run.steps else None


def host_ms_per_step(run: Run) -> float | None:
    """Milliseconds a forward's step spends outside the forward."""
    if run.forward_s is None or not run.forwards:
        return None
    return 1000.0 * (run.wall_s - run.forward_s) / run.forwards


def read_gb_per_s(run: Run, hardware: Hardware) -> float | None:
    """Weights read a second of forwards, in GB."""
    if not run.forward_s:
        return None
    return (run.weight_bytes or hardware.weight_bytes) * run.forwards / run.forward_s / 1e9


def agreement(run: Run, reference: Run) -> dict[str, Any]:
    """How many outputs equal the reference's, and the earliest index where one does not.

    No arm writes text while it is measured: ids and finish reasons are compared, on which alone the
    text depends.
    """
    pairs = zip_longest(run.outputs, reference.outputs, run.reasons, reference.reasons)
    at = [_difference(*pair) for pair in pairs]
    different = [index for index in at if index is not None]
    return {
        "texts": len(at),
        "equal_texts": len(at) - len(different),
        "first_divergence": min(different, default=None),
    }


def _difference(
    ours: Ids, theirs: Ids, reason: FinishReason | None, other: FinishReason | None
) -> int | None:
    """The first index that differs; the output's length where only the finish reason does."""
    at = first_difference(ours, theirs)
    if at is None and None not in (reason, other) and reason != other:
        return len(ours)
    return at


def rows(measured: Measured, hardware: Hardware) -> list[dict[str, Any]]:
    """One row an arm: the cell, the arm, its figures."""
    return [_row(measured, name, hardware) for name in measured.runs]


def _row(measured: Measured, name: str, hardware: Hardware) -> dict[str, Any]:
    runs, plain = measured.runs[name], measured.runs[AR]
    ratios = [tokens_per_s(a) / tokens_per_s(b) for a, b in zip(runs, plain, strict=True)]
    step = tokens_per_step(runs[0])
    gb_per_s = _median(runs, lambda run: read_gb_per_s(run, hardware))
    comparable = measured.arms[name].own or measured.cell.temperature == 0.0
    return {
        **asdict(measured.cell),
        "arm": name,
        "setting": measured.arms[name].setting,
        "rounds": len(runs),
        **_spread("tokens_per_s", list(map(tokens_per_s, runs))),
        "ttft_ms": _median(runs, ttft_ms),
        "ms_per_token": _median(runs, ms_per_token),
        "tokens_per_step": step,
        "accepted_per_pos": run_accepted_per_pos(runs[0]),
        **_spread("speedup_vs_ar", ratios),
        "efficiency": median(ratios) / step,
        "fed_per_step": fed_per_step(runs[0]),
        "host_ms_per_step": _median(runs, host_ms_per_step),
        "read_gb_per_s": gb_per_s,
        "share_of_bandwidth": None
        if gb_per_s is None
        else gb_per_s * 1e9 / hardware.read_bandwidth,
        "peak_memory_mb": max(run.peak_bytes for run in runs) / 1e6,
        "output_tokens": runs[0].output_tokens,
        "distinct_4grams": distinct_4grams(runs[0].outputs),
        **_agreement(runs[0], plain[0], comparable),
    }


def _agreement(run: Run, plain: Run, comparable: bool) -> dict[str, Any]:
    """Peers draw other random numbers, so their sampled texts say nothing."""
    found = agreement(run, plain)
    return found if comparable else {**found, "equal_texts": None, "first_divergence": None}


def _median(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> float | None:
    found = [value for value in map(figure, runs) if value is not None]
    return median(found) if found else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
