"""Expected seconds of steps: the shape of a table, corrected by each step that ran.

A step takes `plain * (1 + extra(tokens))`. Plain steps show `plain`, which scales all sizes; those
with drafts show the extra of similar sizes. Other work on the machine only adds to a time, so
faster steps than expected count at once, and slower ones a little at a time. A size that is no
longer fed returns to the table, and is tried again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from trtla.runtime.costs import CostTable, Point

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
"""Fed tokens of each sequence whose prices are learnt; sizes between them are interpolated."""
_UP, _CLIP = 1.0 / 6.0, 0.4  # weight of a slow step, and its largest deviation, as a logarithm
_DOWN = 0.5  # weight of a fast step
_AHEAD = 2  # knots beyond those fed that may be as cheap as these
_NEW, _NEW_CLIP = 3, math.log(2.0)  # steps of a size that are new, and the same of a slow one
_BOUND = math.log(256.0)  # of the machine's factor relative to the table
_SUSPICIOUS = math.log(1.5)  # beyond which the machine is suspected rather than the size
_FRESH = 4  # steps for which a plain one confirms the machine's factor
_FIRST_PLAIN, _PLAIN_EVERY = 2, 64  # steps without drafts: initially, and between later ones
_REMEMBERED = 256  # steps after which a size that was not fed counts as unknown
_RELAX_EVERY, _RELAXED = 16, 1.0 / 12.0  # steps, and the share of a price forgotten in them
_MOST_KNOTS = 4096  # kinds of steps that are cached
_MOST_EXTRA = 1.2  # times the extra of as many plain steps as there are tokens
_LEAST_EXTRA = 0.002  # of a token: the base of prices if a table has none


class _Place(NamedTuple):
    """The position of a step's size between knots."""

    low: int
    share: float

    @property
    def knot(self) -> int:
        """The nearest knot; larger sizes than the last have its price."""
        return min(self.low + round(self.share), len(_KNOTS) - 1)


class StepCosts:
    """Seconds of steps by fed tokens and sequences.

    Args:
        table: initial seconds of steps.
        learnt: the `learnt()` of an earlier object; invalid entries are ignored.
    """

    def __init__(self, table: CostTable, learnt: Mapping[str, Any] | None = None) -> None:
        self._table = table
        self._prices: dict[int, _Prices] = {}
        self._places: dict[tuple[int, int], tuple[_Prices, _Place]] = {}
        self._knots: dict[tuple[int, int, int], tuple[_Prices, list[tuple[int, int, float]]]] = {}
        self._learnt = dict(learnt or {})

    def seconds(self, tokens: int, sequences: int) -> float:
        """Return the time of a step that feeds `tokens` over `sequences`."""
        prices, (low, share) = self._places.get((tokens, sequences)) or self._place(
            tokens, sequences
        )
        below = prices.extras[low]
        return prices.plain_s * (1.0 + below + (prices.extras[low + 1] - below) * share)

    def knots(self, tokens: int, sequences: int, most: int) -> tuple[Point, ...]:
        """Return (nodes, seconds) of a step with `tokens` and up to `most` more nodes."""
        known = self._knots.get((tokens, sequences, most))
        if known is None:
            nodes = [0]
            while nodes[-1] < most:
                nodes.append(min(most, 2 * nodes[-1] + sequences))
            places = [(n, *self._place(tokens + n, sequences)[1]) for n in nodes]
            if len(self._knots) > _MOST_KNOTS:
                self._knots.clear()
            known = self._knots[tokens, sequences, most] = self._place(tokens, sequences)[0], places
        prices, places = known
        extras, plain = prices.extras, prices.plain_s
        return tuple(
            [
                (n, plain * (1.0 + extras[low] + (extras[low + 1] - extras[low]) * share))
                for n, low, share in places
            ]
        )

    def knows(self, tokens: int, sequences: int) -> bool:
        """Return True if steps of about this size were seen recently."""
        prices, place = self._place(tokens, sequences)
        return prices.knows(place.knot)

    def record(self, tokens: int, sequences: int, seconds: float) -> None:
        prices, place = self._place(tokens, sequences)
        ratio = math.log(max(seconds, 1e-9) / self.seconds(tokens, sequences))
        if tokens == sequences:
            prices.saw_plain(ratio)
        else:
            prices.saw_drafted(ratio, place)

    def learnt(self) -> dict[str, Any]:
        """Return all that steps have shown, for a later process; empty if none ran."""
        new = {str(kind): prices.learnt() for kind, prices in self._prices.items() if prices.steps}
        return self._learnt | new if new else {}

    def _place(self, tokens: int, sequences: int) -> tuple[_Prices, _Place]:
        known = self._places.get((tokens, sequences))
        if known is None:
            kind = sequences.bit_length()
            if kind not in self._prices:
                self._prices[kind] = _Prices(self._table, sequences, self._learnt.get(str(kind)))
            prices = self._prices[kind]
            known = self._places[tokens, sequences] = prices, prices.place(tokens / sequences)
        return known


class _Prices:
    """Prices of steps of about `sequences` sequences: a plain one's seconds, and extras by size."""

    def __init__(self, table: CostTable, sequences: int, learnt: object) -> None:
        self._base_s = table.seconds(sequences, sequences)
        self._table, self._sequences = table, sequences
        self._tabled = [self._extra(knot) for knot in _KNOTS]
        """The table's extras of the knots."""
        self._unit = [
            max(x, _LEAST_EXTRA * (n - 1)) for x, n in zip(self._tabled, _KNOTS, strict=True)
        ]
        self._price = [1.0] * len(_KNOTS)
        self._seen: list[int | None] = [None] * len(_KNOTS)
        """Steps at which knots were last fed; None: the price was never learnt."""
        self._fed = [0] * len(_KNOTS)
        """Steps of these sizes since their prices were unknown."""
        self._taught = [0] * len(_KNOTS)
        """Steps of this process that have changed a price."""
        self._kept: dict[int, float] = {}
        """Prices of an earlier process by knot."""
        self._plain = self._moved = 0.0
        """Logarithm of the machine's factor, and the part that steps with drafts have added."""
        self._last: _Place = _Place(0, 0.0)
        self._plain_seen = self._last_plain = self.steps = 0
        self._terms: list[tuple[float, int, float, float]] = []
        """For each knot the table's extra, the knot whose price it uses, the least such price, and
        the base of prices; empty after another knot was learnt."""
        self.plain_s = self._base_s
        self._read(learnt)
        self._refresh()

    def _extra(self, each: float) -> float:
        return self._table.seconds(each * self._sequences, self._sequences) / self._base_s - 1.0

    def place(self, each: float) -> _Place:
        """Locate a size: by the table's extras between two knots, else by its tokens."""
        low = min(max(bisect_right(_KNOTS, each), 1), len(_KNOTS) - 1) - 1
        below, above = self._tabled[low], self._tabled[low + 1]
        if above > below:
            return _Place(low, max(0.0, (self._extra(each) - below) / (above - below)))
        return _Place(low, max(0.0, (each - _KNOTS[low]) / (_KNOTS[low + 1] - _KNOTS[low])))

    def knows(self, knot: int) -> bool:
        if not knot:
            recent = self.steps - self._last_plain < _PLAIN_EVERY
            return self._plain_seen >= _FIRST_PLAIN and recent and abs(self._moved) < _SUSPICIOUS
        seen = self._seen[knot]
        return seen is not None and self.steps - seen < _REMEMBERED

    def saw_plain(self, ratio: float) -> None:
        """Learn the logarithm of a plain step's real over expected seconds."""
        if abs(ratio + self._moved) < abs(ratio):  # the size had changed, not the machine
            self._shift(-self._moved)
            ratio += self._moved
            self._adjust(self._moved, self._last)
        self._moved = 0.0
        self._plain_seen, self._last_plain = self._plain_seen + 1, self.steps
        first = 1.0 / self._plain_seen
        clip = _BOUND if self._plain_seen <= _NEW else _CLIP
        self._shift(_gained(ratio, max(_UP, first), max(_DOWN, first), clip))
        self._stepped()

    def saw_drafted(self, ratio: float, place: _Place) -> None:
        """Learn the same of a step with drafts."""
        knot = place.knot
        self._fed[knot] = self._fed[knot] + 1 if self.knows(knot) else 1
        new = 1.0 / self._fed[knot] if knot and self._fed[knot] <= _NEW else 0.0
        gained = _gained(ratio, max(new, _UP), max(new, _DOWN), _NEW_CLIP if new else _CLIP)
        doubtful = self.steps - self._last_plain > _FRESH or not self._plain_seen
        # More tokens never cost less: if they seem to, the machine was slow in the steps before.
        slow_before = ratio < -math.log1p(self._extra_at(place))
        if slow_before or (doubtful and abs(ratio) > _SUSPICIOUS):
            self._shift(gained)
            self._moved, self._last = self._moved + gained, place
        else:
            self._adjust(gained, place)
        self._stepped()

    def _shift(self, gained: float) -> None:
        self._plain = max(-_BOUND, min(self._plain + gained, _BOUND))
        self.plain_s = self._base_s * math.exp(self._plain)

    def _extra_at(self, place: _Place) -> float:
        below = self.extras[place.low]
        return below + (self.extras[place.low + 1] - below) * place.share

    def _adjust(self, gained: float, place: _Place) -> None:
        """Change the extra of a size by a gained factor."""
        low, share = place
        more = (1.0 + self._extra_at(place)) * math.expm1(gained)
        parts = [(k, p) for k, p in ((low, 1.0 - share), (low + 1, share)) if k and p >= 0.25]
        whole = sum([part * part for _, part in parts])
        for knot, part in parts:
            wanted = self.extras[knot] + more * part / whole
            most = max(self._tabled[knot], _MOST_EXTRA * (_KNOTS[knot] - 1))
            price = 1.0 + (min(max(wanted, 0.0), most) - self._tabled[knot]) / self._unit[knot]
            if self._seen[knot] is None:
                self._terms = []
            self._price[knot], self._seen[knot] = price, self.steps
            self._taught[knot] += 1
        self._refresh()

    def _stepped(self) -> None:
        self.steps += 1
        if self.steps % _RELAX_EVERY == 0:
            for knot, seen in enumerate(self._seen):
                if seen is not None and self.steps - seen > _RELAX_EVERY:
                    self._price[knot] += (1.0 - self._price[knot]) * _RELAXED
            self._refresh()

    def _refresh(self) -> None:
        """Recompute extras: a knot that was never fed has the price of the nearest fed one, but
        much larger ones than all that were fed are not taken for cheaper than in the table."""
        if not self._terms:
            self._terms = [*zip(self._tabled, *self._nearest(), self._unit, strict=True)]
        prices = self._price
        extras = [x + (max(prices[k], least) - 1.0) * u for x, k, least, u in self._terms]
        self.extras = list(accumulate(extras, max))  # they never fall

    def _nearest(self) -> tuple[list[int], list[float]]:
        """Return, for each knot, the nearest one with a learnt price, or itself if there is none,
        and the least price."""
        knots = range(len(_KNOTS))
        known = [knot for knot in knots if self._seen[knot] is not None]
        if not known:
            return [*knots], [0.0] * len(knots)
        nearest = [min(known, key=lambda other: abs(other - knot)) for knot in knots]
        return nearest, [float(knot > known[-1] + _AHEAD) for knot in knots]

    def learnt(self) -> dict[str, Any]:
        """Return what a later process begins with. A price that fewer than `_NEW` steps have
        changed is as before: one slow step would stop all drafts of the short runs after it."""
        prices = {
            str(size): self._kept.get(knot) if 0 < self._taught[knot] < _NEW else self._price[knot]
            for knot, size in enumerate(_KNOTS)
            if self._seen[knot] is not None
        }
        known = {size: price for size, price in prices.items() if price is not None}
        return {"plain": self._plain, "prices": known}

    def _read(self, learnt: object) -> None:
        if not isinstance(learnt, Mapping) or not isinstance(learnt.get("prices"), Mapping):
            return
        self._shift(_number(learnt.get("plain"), 0.0))
        for knot, size in enumerate(_KNOTS):
            price = _number(learnt["prices"].get(str(size)), -1.0)
            most = max(1.0, _MOST_EXTRA * (size - 1) / self._unit[knot]) if knot else 0.0
            if 0.0 <= price <= most:
                self._price[knot], self._seen[knot] = price, -_REMEMBERED
                self._kept[knot] = price


def _gained(ratio: float, up: float, down: float, clip: float = _CLIP) -> float:
    """Return a step's weight-scaled correction, from the logarithm of real over expected
    seconds."""
    return min(ratio, clip) * up if ratio > 0.0 else max(ratio, -_BOUND) * down


def _number(value: object, other: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return other
    return float(value) if -1e9 < value < 1e9 else other
