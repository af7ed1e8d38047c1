"""The cost of a forward by fed tokens and sequences, and the prices of a draft's nodes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

_LEAST_S = 1e-9
"""The fastest possible forward: divisions by times near 0 would overflow."""

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a forward, piecewise linear in fed tokens, and linear between rows.

    A row holds the costs of a number of sequences: (fed tokens over all, seconds), tokens rising,
    seconds never falling. Beyond its ends it continues with its last slope.
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
        """Return the time of a forward of `tokens` in all, fed by `sequences`."""
        index = bisect_left(self.rows, sequences, key=lambda row: row[0])
        if index == len(self.rows):
            return _along(self.rows[-1][1], tokens)
        upper, above = self.rows[index]
        if upper == sequences or not index:
            return _along(above, tokens)
        lower, below = self.rows[index - 1]
        share = (sequences - lower) / (upper - lower)
        return (1.0 - share) * _along(below, tokens) + share * _along(above, tokens)


class Mixture(NamedTuple):
    """The experts of a model, for what its steps read."""

    share: float
    """The part of the weights that one token reads that are experts'."""
    experts: int
    each: int
    """Experts of a layer, and of a token in it."""

    def growth(self, tokens: float) -> float:
        """Return the weights that tokens read over those of one, if each has experts of its own."""
        used = self.experts * (1.0 - math.pow(1.0 - self.each / self.experts, tokens))
        return 1.0 - self.share + self.share * used / self.each


class NodePrices(NamedTuple):
    """The cost of a draft's nodes, and the gain that they must bring."""

    knots: tuple[Point, ...] = ()
    """(nodes, seconds of a step with them), from 0 nodes to the most that may be taken, linear
    between these and never falling; empty: take all that fit."""
    rate: float = 0.0
    """Tokens a second on average."""
    margin: float = 0.0
    """Gain required beyond a node's cost, as a share of its expected gain."""
    least: float = 0.0
    """Chance below which nodes are ignored."""
    lesson: float = 0.0
    """Later worth of a fed node's row in tokens, whether it is right or not."""


FREE = NodePrices()
"""Nodes that cost nothing: all that fit are fed."""


def _along(points: Sequence[Point], tokens: float) -> float:
    if len(points) == 1:
        return points[0][1]
    index = min(max(1, bisect_left(points, tokens, key=lambda point: point[0])), len(points) - 1)
    (left, low), (right, high) = points[index - 1], points[index]
    if tokens < left:
        return low
    return low + (high - low) * (tokens - left) / (right - left)


def rising(times: Mapping[int, float]) -> tuple[Point, ...]:
    """Return points in order, where less never costs more: disturbances only add to a time."""
    tokens = sorted(times)
    seconds = list(accumulate((times[count] for count in reversed(tokens)), min))
    return tuple(zip(tokens, reversed(seconds), strict=True))
