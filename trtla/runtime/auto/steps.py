"""Seconds of steps as they are expected now: a table's shape, corrected by each step that was run.

A step takes `plain * (1 + extra(tokens))`. Plain steps show `plain`, which scales all sizes; those
with drafts show the extra of sizes like theirs. Other work on the machine only adds to a time, so
what was faster than expected is believed at once, and what was slower a little at a time. A size
that is not fed any more goes back to the table, and is tried again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from trtla.runtime.costs import CostTable, Point

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
"""Fed tokens of each sequence whose prices are learnt; those between follow them."""
_UP, _CLIP = 1.0 / 6.0, 0.4  # what a slow step counts, and how far it can be off, as a logarithm
_DOWN = 0.5  # what a fast step counts
_BOUND = math.log(256.0)  # of what the machine does against the table
_SUSPICIOUS = math.log(1.5)  # beyond which the machine is doubted before the size is
_FRESH = 4  # steps for which a plain one vouches for the machine
_FIRST_PLAIN, _PLAIN_EVERY = 2, 64  # steps without drafts: at first, and then to stay known
_REMEMBERED = 256  # steps after which a size that was not fed is as if unknown
_RELAX_EVERY, _RELAXED = 16, 1.0 / 12.0  # steps, and what of a price is given up in them
_MOST_KNOTS = 4096  # kinds of steps that are remembered
_MOST_EXTRA = 1.2  # times that of as many plain steps as there are tokens
_LEAST_EXTRA = 0.002  # of a token: what prices are relative to where a table says none


class _Place(NamedTuple):
    """Where a step's size lies between knots."""

    low: int
    share: float

    @property
    def knot(self) -> int:
        """The nearest one; larger sizes than the last have its price."""
        return min(self.low + round(self.share), len(_KNOTS) - 1)


class StepCosts:
    """Seconds of steps by fed tokens and sequences.

    Args:
        table: what steps take before any was seen.
        learnt: by an earlier one, as `learnt()` says; what does not fit is ignored.
    """

    def __init__(self, table: CostTable, learnt: Mapping[str, Any] | None = None) -> None:
        self._table = table
        self._prices: dict[int, _Prices] = {}
        self._places: dict[tuple[int, int], tuple[_Prices, _Place]] = {}
        self._knots: dict[tuple[int, int, int], tuple[_Prices, list[tuple[int, int, float]]]] = {}
        self._learnt = dict(learnt or {})

    def seconds(self, tokens: int, sequences: int) -> float:
        """The time of a step that feeds so many tokens over so many sequences."""
        prices, (low, share) = self._places.get((tokens, sequences)) or self._place(
            tokens, sequences
        )
        below = prices.extras[low]
        return prices.plain_s * (1.0 + below + (prices.extras[low + 1] - below) * share)

    def knots(self, tokens: int, sequences: int, most: int) -> tuple[Point, ...]:
        """(nodes, seconds) of a step with so many tokens beside up to `most` nodes."""
        found = self._knots.get((tokens, sequences, most))
        if found is None:
            nodes = [0]
            while nodes[-1] < most:
                nodes.append(min(most, 2 * nodes[-1] + sequences))
            places = [(n, *self._place(tokens + n, sequences)[1]) for n in nodes]
            if len(self._knots) > _MOST_KNOTS:
                self._knots.clear()
            found = self._knots[tokens, sequences, most] = self._place(tokens, sequences)[0], places
        prices, places = found
        extras, plain = prices.extras, prices.plain_s
        return tuple(
            [
                (n, plain * (1.0 + extras[low] + (extras[low + 1] - extras[low]) * share))
                for n, low, share in places
            ]
        )

    def knows(self, tokens: int, sequences: int) -> bool:
        """Whether steps of about this size were seen recently."""
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
        """What steps have shown, to begin with another time; empty where none was seen."""
        new = {str(kind): one.learnt() for kind, one in self._prices.items() if one.steps}
        return self._learnt | new if new else {}

    def _place(self, tokens: int, sequences: int) -> tuple[_Prices, _Place]:
        found = self._places.get((tokens, sequences))
        if found is None:
            kind = sequences.bit_length()
            if kind not in self._prices:
                self._prices[kind] = _Prices(self._table, sequences, self._learnt.get(str(kind)))
            prices = self._prices[kind]
            found = self._places[tokens, sequences] = prices, prices.place(tokens / sequences)
        return found


class _Prices:
    """The prices of steps of about so many sequences: a plain one's seconds, and what sizes add."""

    def __init__(self, table: CostTable, sequences: int, learnt: object) -> None:
        self._base_s = table.seconds(sequences, sequences)
        self._table, self._sequences = table, sequences
        self._said = [self._extra(knot) for knot in _KNOTS]
        """Extras of the knots by the table."""
        self._unit = [
            max(x, _LEAST_EXTRA * (n - 1)) for x, n in zip(self._said, _KNOTS, strict=True)
        ]
        self._price = [1.0] * len(_KNOTS)
        self._seen: list[int | None] = [None] * len(_KNOTS)
        """Steps by which knots were fed last; None: the price was never learnt."""
        self._plain = self._moved = 0.0
        """Logarithm of the machine's factor, and what steps with drafts have added to it."""
        self._last: _Place = _Place(0, 0.0)
        self._plain_seen = self._last_plain = self.steps = 0
        self._terms: list[tuple[float, int, float]] = []
        """What the table says of each knot, whose price it has, and what prices are relative to;
        empty where another knot was learnt."""
        self.plain_s = self._base_s
        self._read(learnt)
        self._refresh()

    def _extra(self, each: float) -> float:
        return self._table.seconds(each * self._sequences, self._sequences) / self._base_s - 1.0

    def place(self, each: float) -> _Place:
        """Where a size lies: by what the table says between two knots, else by its tokens."""
        low = min(max(bisect_right(_KNOTS, each), 1), len(_KNOTS) - 1) - 1
        below, above = self._said[low], self._said[low + 1]
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
        """Take the logarithm of a plain step's real by its expected seconds."""
        if abs(ratio + self._moved) < abs(ratio):  # it was the size, not the machine
            self._shift(-self._moved)
            ratio += self._moved
            self._adjust(self._moved, self._last)
        self._moved = 0.0
        self._plain_seen, self._last_plain = self._plain_seen + 1, self.steps
        first = 1.0 / (1 + self._plain_seen)
        self._shift(_gained(ratio, max(_UP, first), max(_DOWN, first)))
        self._stepped()

    def saw_drafted(self, ratio: float, place: _Place) -> None:
        """The same of a step with drafts."""
        knot = place.knot
        is_new = knot and not self.knows(knot)
        gained = _gained(ratio, 0.5 if is_new else _UP, 1.0 if is_new else _DOWN)
        doubtful = self.steps - self._last_plain > _FRESH or not self._plain_seen
        if doubtful and abs(ratio) > _SUSPICIOUS:
            self._shift(gained)
            self._moved, self._last = self._moved + gained, place
        else:
            self._adjust(gained, place)
        self._stepped()

    def _shift(self, gained: float) -> None:
        self._plain = max(-_BOUND, min(self._plain + gained, _BOUND))
        self.plain_s = self._base_s * math.exp(self._plain)

    def _adjust(self, gained: float, place: _Place) -> None:
        """Have a size take as much more or less."""
        low, share = place
        extra = self.extras[low] + (self.extras[low + 1] - self.extras[low]) * share
        more = (1.0 + extra) * math.expm1(gained)
        parts = [(k, p) for k, p in ((low, 1.0 - share), (low + 1, share)) if k and p >= 0.25]
        whole = sum([part * part for _, part in parts])
        for knot, part in parts:
            wanted = self.extras[knot] + more * part / whole
            most = max(self._said[knot], _MOST_EXTRA * (_KNOTS[knot] - 1))
            price = 1.0 + (min(max(wanted, 0.0), most) - self._said[knot]) / self._unit[knot]
            if self._seen[knot] is None:
                self._terms = []
            self._price[knot], self._seen[knot] = price, self.steps
        self._refresh()

    def _stepped(self) -> None:
        self.steps += 1
        if self.steps % _RELAX_EVERY == 0:
            for knot, seen in enumerate(self._seen):
                if seen is not None and self.steps - seen > _RELAX_EVERY:
                    self._price[knot] += (1.0 - self._price[knot]) * _RELAXED
            self._refresh()

    def _refresh(self) -> None:
        """Put extras together: a knot that was never fed has the price of the nearest that was."""
        if not self._terms:
            self._terms = [*zip(self._said, self._nearest(), self._unit, strict=True)]
        prices = self._price
        # None falls.
        self.extras = list(accumulate([x + (prices[k] - 1.0) * u for x, k, u in self._terms], max))

    def _nearest(self) -> list[int]:
        """By knot the nearest one whose price was learnt, or itself where none was."""
        known = [knot for knot, seen in enumerate(self._seen) if seen is not None]
        if not known:
            return list(range(len(_KNOTS)))
        return [min(known, key=lambda one: abs(one - knot)) for knot in range(len(_KNOTS))]

    def learnt(self) -> dict[str, Any]:
        prices = {
            str(_KNOTS[i]): self._price[i] for i, seen in enumerate(self._seen) if seen is not None
        }
        return {"plain": self._plain, "prices": prices}

    def _read(self, learnt: object) -> None:
        if not isinstance(learnt, Mapping) or not isinstance(learnt.get("prices"), Mapping):
            return
        self._shift(_number(learnt.get("plain"), 0.0))
        for knot, size in enumerate(_KNOTS):
            price = _number(learnt["prices"].get(str(size)), -1.0)
            most = max(1.0, _MOST_EXTRA * (size - 1) / self._unit[knot]) if knot else 0.0
            if 0.0 <= price <= most:
                self._price[knot], self._seen[knot] = price, -_REMEMBERED


def _gained(ratio: float, up: float, down: float) -> float:
    """What a step changes, of the logarithm of its real by its expected seconds."""
    return min(ratio, _CLIP) * up if ratio > 0.0 else max(ratio, -_BOUND) * down


def _number(value: object, other: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return other
    return float(value) if -1e9 < value < 1e9 else other
