"""What a forward costs: seconds by fed tokens and sequences, measured once per engine and device.

Plain numbers between measurement and use, kept in a small JSON file; no tensors. What is measured
comes as a function from outside.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol, runtime_checkable

from trtla.errors import UsageError
from trtla.json_text import parse_json
from trtla.whole_file import write_whole

FORMAT_VERSION = 1

Point = tuple[int, float]
Forward = Callable[[int, int], None]
"""(sequences, fed tokens each): run one such forward to its end."""


@dataclass(frozen=True, slots=True)
class CostPlan:
    """Which forwards to time."""

    batches: tuple[int, ...] = (1, 4, 16)
    """Numbers of sequences, rising."""
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    """Fed tokens of each sequence, rising from 1."""
    most_tokens: int = 512
    """Fed tokens of all sequences, at most; one token each is always timed."""
    context: int = 192
    """Cached tokens of each sequence: a modest text."""
    row_budget_s: float = 0.5
    """A row ends early when a model is slow; its last slope goes on from there."""
    sweeps: int = 1
    """Times that each row is gone through: what disturbs one sweep is not there in all."""
    repeats: int = 5
    """Times that each forward is run in a sweep, after one that warms up."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a forward, piecewise linear in fed tokens, and linear between rows.

    A row holds what a number of sequences costs: (fed tokens over all, seconds), tokens rising,
    seconds never falling. Past its ends a row goes on with its last slope.

    Raises:
        ValueError: a row is empty, not in order, or holds a time that is not positive.
    """

    rows: tuple[tuple[int, tuple[Point, ...]], ...]
    """(sequences, points), sequences rising."""

    def __post_init__(self) -> None:
        counts = [sequences for sequences, _ in self.rows]
        if not counts or counts != sorted(set(counts)) or counts[0] < 1:
            raise ValueError("rows are missing or out of order")
        for _, points in self.rows:
            tokens, seconds = [p[0] for p in points], [p[1] for p in points]
            if not tokens or tokens != sorted(set(tokens)) or tokens[0] < 1:
                raise ValueError("points are missing or out of order")
            if seconds != sorted(seconds) or not 0.0 < seconds[0] <= seconds[-1] < float("inf"):
                raise ValueError("times must be positive and never fall")

    @classmethod
    def of(cls, points: Sequence[Point], sequences: int = 1) -> CostTable:
        """A table of one row."""
        return cls(((sequences, tuple(points)),))

    def seconds(self, tokens: float, sequences: int = 1) -> float:
        """The time of a forward of `tokens` in all, fed by `sequences`."""
        place = bisect_left(self.rows, sequences, key=lambda row: row[0])
        if place == len(self.rows):
            return _along(self.rows[-1][1], tokens)
        upper, above = self.rows[place]
        if upper == sequences or not place:
            return _along(above, tokens)
        lower, below = self.rows[place - 1]
        share = (sequences - lower) / (upper - lower)
        return (1.0 - share) * _along(below, tokens) + share * _along(above, tokens)


def _along(points: Sequence[Point], tokens: float) -> float:
    if len(points) == 1:
        return points[0][1]
    place = min(max(1, bisect_left(points, tokens, key=lambda point: point[0])), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    if tokens < left:
        return low
    return low + (high - low) * (tokens - left) / (right - left)


@runtime_checkable
class CostMeasurer(Protocol):
    """An executor that can time forwards."""

    def measure_costs(self, plan: CostPlan) -> CostTable:
        """Time them now."""


def cost_measurer(executor: object, name: str) -> CostMeasurer:
    """The executor, where it can time forwards; `name` is the engine's.

    Raises:
        UsageError: it is TensorRT-LLM's.
    """
    if isinstance(executor, CostMeasurer):
        return executor
    raise UsageError(
        f"{name} is a TensorRT-LLM engine, whose forwards cannot be timed one by one",
        "measure with a torch engine",
    )


def measure(forward: Forward, plan: CostPlan) -> CostTable:
    """Time forwards as planned; of each one the least counts."""
    rows = []
    for sequences in plan.batches:
        found: dict[int, float] = {}
        for _ in range(plan.sweeps):
            for fed, second in _sweep(forward, sequences, plan).items():
                found[fed] = min(second, found.get(fed, second))
        seconds = accumulate((found[fed] for fed in sorted(found)), max)  # more never costs less
        rows.append((sequences, tuple(zip(sorted(found), seconds, strict=True))))
    return CostTable(tuple(rows))


def _sweep(forward: Forward, sequences: int, plan: CostPlan) -> dict[int, float]:
    """Seconds by fed tokens over all sequences."""
    started, found = time.perf_counter(), dict[int, float]()
    for each in plan.sizes:
        late = time.perf_counter() - started > plan.row_budget_s / plan.sweeps
        if found and ((late and len(found) > 1) or sequences * each > plan.most_tokens):
            break
        found[sequences * each] = _least_s(forward, sequences, each, plan.repeats)
    return found


def _least_s(forward: Forward, sequences: int, each: int, repeats: int) -> float:
    times = []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        forward(sequences, each)
        times.append(time.perf_counter() - started)
    return min(times)  # whatever else the machine does only adds


def load(key: str, folders: Sequence[Path]) -> CostTable | None:
    """The kept table of this key; None where there is none, or a file is broken or foreign."""
    for folder in folders:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = parse_json(_file(folder, key).read_text(encoding="utf-8"))
            if found["format_version"] == FORMAT_VERSION and found["key"] == key:
                return _from_json(found["rows"])
    return None


def _from_json(rows: list[dict[str, list[list[float]]]]) -> CostTable:
    return CostTable(
        tuple(
            (int(str(row["sequences"])), tuple((int(n), float(s)) for n, s in row["points"]))
            for row in rows
        )
    )


def save(table: CostTable, key: str, folders: Sequence[Path]) -> Path | None:
    """Keep a table in the first folder that can be written, whole or not at all; None: nowhere."""
    rows = [{"sequences": count, "points": points} for count, points in table.rows]
    text = json.dumps({"format_version": FORMAT_VERSION, "key": key, "rows": rows}, indent=1)
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return write_whole(_file(folder, key), text)
    return None


def _file(folder: Path, key: str) -> Path:
    return folder / f"trtla-cost-{key}.json"


def get(key: str, folders: Sequence[Path], make: Callable[[], CostTable]) -> CostTable:
    """The kept table, else a new one, kept from then on."""
    table = load(key, folders)
    if table is None:
        table = make()
        save(table, key, folders)
    return table
