"""What a forward costs: seconds by fed tokens and sequences, measured once per engine and device.

A table is kept in a small JSON file; `auto.probe` measures it. Steps add host work, and a table may
have been measured next to other work: each step's seconds correct what is expected of later ones.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from trtla.files import parse_json, write_whole

FORMAT_VERSION = 2
COST_FILES = "trtla-cost-*.json"
"""What tables are kept in; the star is the key."""

_LEAST_S = 1e-9
"""No forward is faster; times near 0 would overflow where others are divided by them."""

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class CostPlan:
    """Which forwards to time."""

    batches: tuple[int, ...] = (1, 4, 16)
    """Numbers of sequences, rising."""
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    """Fed tokens of each sequence, rising from 1."""
    most_tokens: int = 512
    """Fed tokens of all sequences, at most, where more are not needed."""
    context: int = 192
    """Cached tokens of each sequence: a modest text."""
    row_budget_s: float = 1.0
    """For what is not needed: larger sizes, repeats, further sweeps of a number of sequences."""
    sweeps: int = 3
    """Times that each row is gone through, at least: what disturbs one is not there in all."""
    repeats: int = 2
    """Times that each forward is run in a sweep, after one that warms up."""
    bounded: bool = False
    """Whether larger sizes are given up when a row's budget is over, even if they are needed."""
    needed: int = 1
    """Fed tokens of each sequence up to which sizes are timed, however slow the model is."""
    max_tokens: int = 8192
    """Fed tokens of all sequences, at most, where they are needed."""

    def top(self, sequences: int) -> int:
        return max(1, min(self.needed, self.max_tokens // sequences))

    def sizes_of(self, sequences: int) -> list[int]:
        """Sizes of a row, rising: up to the top, and larger ones that are timed if time is left."""
        top = self.top(sequences)
        larger = [s for s in self.sizes if s > top and s * sequences <= self.most_tokens]
        return [*(s for s in self.sizes if s < top), top, *larger]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a forward, piecewise linear in fed tokens, and linear between rows.

    A row holds what a number of sequences costs: (fed tokens over all, seconds), tokens rising,
    seconds never falling. Past its ends a row goes on with its last slope.
    """

    rows: tuple[tuple[int, tuple[Point, ...]], ...]
    """(sequences, points), sequences rising."""
    takes_left: int = 0
    """How often it is to be measured again: other work has disturbed it."""

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

    def missing(self, plan: CostPlan) -> tuple[int, ...]:
        """Numbers of sequences for which it lacks what a plan times in any case."""
        longest = {count: points[-1][0] for count, points in self.rows}
        return tuple(n for n in plan.batches if longest.get(n, 0) < n * plan.top(n))

    def merged(self, earlier: CostTable) -> CostTable:
        """With the points of an earlier table; of two times the smaller is the less disturbed."""
        rows = {count: dict(points) for count, points in self.rows}
        for count, points in earlier.rows:
            own = rows.setdefault(count, {})
            for tokens, seconds in points:
                own[tokens] = min(seconds, own.get(tokens, seconds))
        left = self.takes_left
        if left and earlier.takes_left:
            left = earlier.takes_left - 1
        return CostTable(tuple((n, rising(rows[n])) for n in sorted(rows)), left)


@dataclass(frozen=True, slots=True)
class NodePrices:
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

    def seconds(self, nodes: int) -> float:
        return _along(self.knots, nodes)


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


def load(key: str, folders: Sequence[Path]) -> CostTable | None:
    """The kept table of this key; None where there is none, or a file is broken or foreign."""
    for folder in folders:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            found = parse_json(_file(folder, key).read_text(encoding="utf-8"))
            if found["format_version"] == FORMAT_VERSION and found["key"] == key:
                return _from_json(found["rows"], int(found["takes_left"]))
    return None


def _from_json(rows: list[dict[str, list[list[float]]]], takes_left: int) -> CostTable:
    return CostTable(
        tuple(
            (int(str(row["sequences"])), tuple((int(n), float(s)) for n, s in row["points"]))
            for row in rows
        ),
        takes_left,
    )


def save(table: CostTable, key: str, folders: Sequence[Path]) -> Path | None:
    """Keep a table in the first folder that can be written, whole or not at all; None: nowhere."""
    rows = [{"sequences": count, "points": points} for count, points in table.rows]
    head = {"format_version": FORMAT_VERSION, "key": key, "takes_left": table.takes_left}
    text = json.dumps({**head, "rows": rows}, indent=1)
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return write_whole(_file(folder, key), text)
    return None


def _file(folder: Path, key: str) -> Path:
    return folder / COST_FILES.replace("*", key)


def get(
    key: str, folders: Sequence[Path], plan: CostPlan, make: Callable[[CostPlan], CostTable | None]
) -> CostTable | None:
    """The kept table where it serves the plan, else a new one, kept from then on.

    Args:
        make: measures a plan; None: that is not possible now.
    """
    kept = load(key, folders)
    batches = plan.batches if kept is None or kept.takes_left else kept.missing(plan)
    if kept is not None and not batches:
        return kept
    made = make(replace(plan, batches=batches))
    if made is None:
        return kept
    table = made if kept is None else made.merged(kept)
    save(table, key, folders)
    return table


_KNOTS = 14  # fed tokens of each sequence: powers of 2, up to more than a step can have
_CLIP = math.log(2.0)  # what a single step may say, in or out of line
_BOUND = math.log(64.0)  # of corrections
_MEMORY = 1.0 / 32.0  # what a plain step counts at least
_SHARED = 1.0 / 64.0  # what a step with drafts counts for plain ones: the machine's speed drifts
_MOST_WEIGHT = 24.0  # steps that a knot's correction remembers
_FIRST_PLAIN, _PLAIN_EVERY = 2, 64  # steps without drafts: at first, and then to stay known
_KNOWN = 0.25  # weight below which a knot is as if never fed
_FORGOTTEN, _FORGET_EVERY = 0.94, 16  # of weights, in steps: what is not fed gets another chance


class StepCosts:
    """Seconds of steps by fed tokens and sequences.

    Args:
        table: what forwards cost, as measured.
    """

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._known: dict[tuple[int, int], tuple[float, _Correction, int, float]] = {}
        self._corrections: dict[int, _Correction] = {}

    def use(self, table: CostTable) -> None:
        """Go on with a table that knows more; what steps have shown is kept."""
        self._table = table
        self._known.clear()

    def seconds(self, tokens: int, sequences: int) -> float:
        """The time of a step that feeds so many tokens over so many sequences."""
        forward, correction, low, share = self._place(tokens, sequences)
        return forward * correction.factor(low, share)

    def knows(self, tokens: int, sequences: int) -> bool:
        """Whether steps of about this size were seen recently."""
        _, correction, low, share = self._place(tokens, sequences)
        return correction.knows(low + round(share))

    def record(self, tokens: int, sequences: int, seconds: float) -> None:
        forward, correction, low, share = self._place(tokens, sequences)
        ratio = math.log(max(seconds, 1e-9) / forward)
        if tokens == sequences:
            correction.saw_plain(ratio)
        else:
            correction.saw_drafted(ratio, low, share)

    def _place(self, tokens: int, sequences: int) -> tuple[float, _Correction, int, float]:
        """The table's seconds, and between which knots of which correction they lie."""
        found = self._known.get((tokens, sequences))
        if found is None:
            place = min(math.log2(max(1.0, tokens / sequences)), _KNOTS - 1.001)
            own = self._corrections.setdefault(sequences.bit_length(), _Correction())
            forward = self._table.seconds(tokens, sequences)
            found = self._known[tokens, sequences] = (forward, own, int(place), place % 1.0)
        return found


class _Correction:
    """What steps took against the table: one factor for plain steps, and further ones by size.

    Factors of sizes are relative to plain steps. One that was not seen is as the next smaller.
    """

    def __init__(self) -> None:
        self._plain, self._seen, self._steps = 0.0, 0, 0
        """Logarithm of the plain steps' factor, their number, and that of all steps."""
        self._last_plain = 0
        self._own, self._weights = [0.0] * _KNOTS, [0.0] * _KNOTS
        """Logarithms of the factors that were seen, and what they count."""
        self._factors = [1.0] * _KNOTS

    def factor(self, low: int, share: float) -> float:
        below, above = self._factors[low], self._factors[low + 1]
        return below + (above - below) * share

    def knows(self, knot: int) -> bool:
        if not knot:
            return self._seen >= _FIRST_PLAIN and self._steps - self._last_plain < _PLAIN_EVERY
        return self._weights[knot] >= _KNOWN

    def saw_plain(self, ratio: float) -> None:
        """Take the logarithm of a plain step's real by its expected seconds."""
        self._seen, self._last_plain = self._seen + 1, self._steps
        error = _clipped(ratio - self._plain, _CLIP)
        self._plain = _clipped(self._plain + error * max(1.0 / self._seen, _MEMORY), _BOUND)
        self._refresh()

    def saw_drafted(self, ratio: float, low: int, share: float) -> None:
        """The same of a step with drafts, between two knots."""
        error = _clipped(ratio - math.log(self.factor(low, share)), _CLIP)
        self._plain = _clipped(self._plain + error * _SHARED, _BOUND)
        for knot, weight in ((low, 1.0 - share), (low + 1, share)):
            if not knot or weight < _KNOWN:  # plain steps have their own
                continue
            if not self.knows(knot):
                self._own[knot] = math.log(self._factors[knot]) - self._plain
            self._weights[knot] = min(self._weights[knot] + weight, _MOST_WEIGHT)
            gain = weight / self._weights[knot]
            self._own[knot] = _clipped(self._own[knot] + error * gain, _BOUND)
        self._refresh()

    def _refresh(self) -> None:
        """Forget a little, and put factors together."""
        self._steps += 1
        if self._steps % _FORGET_EVERY == 0:
            self._weights = [weight * _FORGOTTEN for weight in self._weights]
        own, log = self._own, 0.0
        for knot in range(_KNOTS):
            if knot and self._weights[knot] >= _KNOWN:
                log = own[knot]
            self._factors[knot] = math.exp(self._plain + log)


def _clipped(value: float, most: float) -> float:
    return max(-most, min(value, most))
