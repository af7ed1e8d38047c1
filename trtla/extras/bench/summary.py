"""Rows over decodings of a table: medians over rounds, sums of counters, means of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, zip_longest
from statistics import fmean, median
from typing import Any

from trtla.extras.bench.documents import EVERY_CATEGORY, Decoding
from trtla.results.documents import SourceRow
from trtla.results.metrics import total
from trtla.results.rows import Row

_SUMS = (
    *("steps", "drafted", "accepted", "draft_forwards", "head_forwards", "head_s"),
    *("output_tokens", "texts", "equal_texts"),
)
_MEDIANS = ("ttft_ms", "ms_per_token", "host_ms_per_step", "read_gb_per_s", "share_of_bandwidth")
_MEANS = ("perplexity", "rougeL", "distinct_4grams")
_BY_STEPS = ("tokens_per_step", "fed_per_step")
_BY_FORWARDS = ("mean_gamma", "mean_entropy")


def summary(decodings: Sequence[Decoding]) -> list[Row]:
    """Return a row for each arm and cell, and for each arm over all categories."""
    rows = [_row(group) for group in _groups(decodings)]
    if len({row.category for row in decodings}) > 1:
        whole = [row.model_copy(update={"category": EVERY_CATEGORY}) for row in decodings]
        rows += [_row(group) for group in _groups(whole)]
    return rows


def _groups(decodings: Sequence[Decoding]) -> Iterator[list[Decoding]]:
    """Yield the decodings of an arm in a cell, arms of a cell one after the other."""
    cells: dict[Any, dict[Any, list[Decoding]]] = {}
    for row in decodings:
        cells.setdefault(row.cell, {}).setdefault((row.arm, row.setting), []).append(row)
    for arms in cells.values():
        yield from arms.values()


def _row(rows: Sequence[Decoding]) -> Row:
    in_order = sorted(rows, key=lambda row: row.round)
    rounds = [list(group) for _, group in groupby(in_order, lambda row: row.round)]
    times = [sum(row.time_s or 0.0 for row in group) for group in rounds]
    tokens = [sum(row.output_tokens or 0 for row in group) for group in rounds]
    speeds = [count / time_s for count, time_s in zip(tokens, times, strict=True)]
    ratios = [_weighted(group, "speedup_vs_ar", "time_s") or 1.0 for group in rounds]
    counts = {name: _known(rows, name, sum) for name in _SUMS}
    per_step = _weighted(rows, "tokens_per_step", "steps")
    return Row.fill(
        rows[0],
        rounds=len(rounds),
        time_s=median(times),
        **_spread("tokens_per_s", speeds),
        **_spread("speedup_vs_ar", ratios),
        **counts,
        **{name: _known(rows, name, median) for name in _MEDIANS},
        **{name: _known(rows, name, fmean) for name in _MEANS},
        **{name: _weighted(rows, name, "steps") for name in _BY_STEPS},
        **{name: _weighted(rows, name, "draft_forwards") for name in _BY_FORWARDS},
        head_share=_weighted(rows, "head_share", "time_s"),
        acceptance_rate=counts["accepted"] / counts["drafted"] if counts["drafted"] else None,
        efficiency=median(ratios) / per_step if per_step else None,
        accepted_per_pos=_accepted_per_pos(rows),
        sources=_sources(rows),
        peak_memory_mb=_known(rows, "peak_memory_mb", max),
        first_divergence=_known(rows, "first_divergence", min),
    )


def _known(rows: Sequence[Decoding], name: str, join: Callable[[list[Any]], Any]) -> Any:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return join(values) if values else None


def _weighted(rows: Sequence[Decoding], name: str, weight: str) -> float | None:
    """Return the mean of a figure by another one; None if no row has both."""
    pairs = [(getattr(row, name), getattr(row, weight)) for row in rows]
    both = [(value, heavy) for value, heavy in pairs if value is not None and heavy]
    whole = sum(heavy for _, heavy in both)
    return sum(value * heavy for value, heavy in both) / whole if whole else None


def _accepted_per_pos(rows: Sequence[Decoding]) -> list[float] | None:
    """Return the mean by steps of the shares at each position; None if a row has none."""
    pairs = [(row.accepted_per_pos, row.steps or 0) for row in rows]
    known = [(shares, steps) for shares, steps in pairs if shares is not None]
    whole = sum(steps for _, steps in known)
    if not whole or len(known) < len(pairs):
        return None
    sums = zip_longest(*([share * n for share in shares] for shares, n in known), fillvalue=0.0)
    return [sum(column) / whole for column in sums]


def _sources(rows: Sequence[Decoding]) -> dict[str, SourceRow] | None:
    counts = [
        {name: source.counts for name, source in row.sources.items()} for row in rows if row.sources
    ]
    if not counts:
        return None
    return {name: SourceRow.model_validate(whole) for name, whole in total(counts).items()}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
