"""What a forward costs, by fed tokens and sequences, and what that says of a draft's nodes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

_LEAST_S = 1e-9
"""No forward is faster; times near 0 would overflow where others are divided by them."""

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a forward, piecewise linear in fed tokens, and linear between rows.

    A row holds what a number of sequences costs: (fed tokens over all, seconds), tokens rising,
    seconds never falling. Past its ends a row goes on with its last slope.
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
            if seconds != sorted(seconds) or not _LEAST_S <= seconds[0] <= seconds[-1] < float(
                "inf"
            ):
                raise ValueError("times must be positive, a nanosecond at least, and never fall")

    @classmethod
    def of(cls, points: Sequence[Point], sequences: int = 1) -> CostTable:
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


class NodePrices(NamedTuple):
    """What the nodes of a draft cost, and what they must bring."""

    knots: tuple[Point, ...] = ()
    """(nodes, seconds of a step with them), from 0 nodes to as many as may be taken, linear between
    these and never falling; empty: all that fit are taken."""
    rate: float = 0.0
    """Tokens a second that are reached on average."""
    margin: float = 0.0
    """What nodes must bring beyond their cost, as a share of what they should bring."""
    least: float = 0.0
    """Chance below which no node is looked at."""
    lesson: float = 0.0
    """Tokens that the row of a fed node is worth later, whether it is right or not."""


FREE = NodePrices()
"""Nodes that cost nothing: all that fit are fed."""


def _along(points: Sequence[Point], tokens: float) -> float:
    if len(points) == 1:
        return points[0][1]
    place = min(max(1, bisect_left(points, tokens, key=lambda point: point[0])), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    if tokens < left:
        return low
    return low + (high - low) * (tokens - left) / (right - left)


def rising(found: Mapping[int, float]) -> tuple[Point, ...]:
    """Points in order, where less never costs more: what disturbs a measurement only adds."""
    tokens = sorted(found)
    seconds = list(accumulate((found[count] for count in reversed(tokens)), min))
    return tuple(zip(tokens, reversed(seconds), strict=True))
