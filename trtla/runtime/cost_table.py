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

from trtla.whole_file import write_whole

FORMAT_VERSION = 1
_REPEATS = 5
_ROW_BUDGET_S = 0.5  # a row ends early when a model is slow; its last slope goes on from there

Point = tuple[int, float]
Forward = Callable[[int, int], None]
"""(sequences, fed tokens each): run one such forward to its end."""


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

    def seconds(self, tokens: int, sequences: int = 1) -> float:
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


def _along(points: Sequence[Point], tokens: int) -> float:
    if len(points) == 1:
        return points[0][1]
    place = min(max(1, bisect_left(points, tokens, key=lambda point: point[0])), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    if tokens < left:
        return low
    return low + (high - low) * (tokens - left) / (right - left)


def measure(
    forward: Forward, batches: Sequence[int], most_each: int, most_tokens: int
) -> CostTable:
    """Time forwards of 1, 2, 4, ... fed tokens a sequence.

    Args:
        batches: numbers of sequences to measure, rising.
        most_each: fed tokens of one sequence, at most.
        most_tokens: fed tokens of all, at most; a forward of one token each is always measured.
    """
    rows = []
    for sequences in batches:
        started, points, each = time.perf_counter(), list[Point](), 1
        while not points or (each <= most_each and sequences * each <= most_tokens):
            points.append((sequences * each, _least_s(forward, sequences, each)))
            each *= 2
            if len(points) > 1 and time.perf_counter() - started > _ROW_BUDGET_S:
                break
        seconds = accumulate((second for _, second in points), max)  # more never costs less
        rows.append(
            (sequences, tuple((p[0], s) for p, s in zip(points, seconds, strict=True))),
        )
    return CostTable(tuple(rows))


def _least_s(forward: Forward, sequences: int, each: int) -> float:
    times = []
    for _ in range(1 + _REPEATS):
        started = time.perf_counter()
        forward(sequences, each)
        times.append(time.perf_counter() - started)
    return min(times)  # whatever else the machine does only adds


def load(key: str, folders: Sequence[Path]) -> CostTable | None:
    """The kept table of this key; None where there is none, or a file is broken or foreign."""
    for folder in folders:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(_file(folder, key).read_text(encoding="utf-8"))
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
