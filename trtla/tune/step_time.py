"""What a step takes: the forward's measured curve, corrected by real steps, and host time.

A forward of made-up sequences is timed for many sizes (`CostTable`). Real requests differ from it:
their texts are longer or shorter, their drafts are trees, and around the forward the host drafts,
verifies and commits. So plain decoding and a few triples are decoded for a moment in every category
and batch size, in turns, and tell two things at the tokens they feed: forward over table, and the
seconds outside the forward. Between those points both follow the logarithm of the fed tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

from trtla.runtime.costs import CostTable

KNEE = 1.25
"""Steps of up to this many plain steps' time count as cheap."""


class StepClock(Protocol):
    """Says what steps take."""

    def seconds(self, sequences: float, fed_each: float, usual_each: float) -> float:
        """A step of this many sequences that feed so many tokens each, host work included.

        Args:
            usual_each: what they feed in the mean of their steps. A drafter works in every step,
                also where it finds nothing to feed.
        """

    def prefill_s(self, prompt_tokens: int, sequences: int, fed_each: float) -> float:
        """From the start until all sequences have their first token, drafters being made.

        Args:
            prompt_tokens: of all sequences.
            fed_each: what their steps feed later: plain decoding makes no drafters.
        """


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of real requests of one batch, averaged."""

    sequences: int
    fed: float
    """Tokens that a step fed, over all sequences."""
    forward_s: float
    step_s: float
    """From one step's end to the next one's."""
    prefill_s: float
    """From the start until all have their first token."""
    prompt_tokens: float
    """Of all sequences."""
    sizes: tuple[float, ...] = ()
    """Fed in each of these steps; empty: the mean in all of them."""

    def table_s(self, table: CostTable) -> float:
        """What the table has for a forward of these steps."""
        sizes = self.sizes or (self.fed,)
        return sum(table.seconds(size, self.sequences) for size in sizes) / len(sizes)


class StepTime:
    """The time of steps of one category.

    Args:
        table: forwards by fed tokens and sequences.
        timed: real steps, at least one for every batch size that matters.

    Raises:
        ValueError: there are no real steps.
    """

    def __init__(self, table: CostTable, timed: Sequence[Timed]) -> None:
        if not timed:
            raise ValueError("no real steps were timed")
        self._table = table
        self._rows: dict[int, list[Timed]] = {}
        for one in sorted(timed, key=lambda one: (one.sequences, one.fed)):
            self._rows.setdefault(one.sequences, []).append(one)
        self._factors = {
            size: [one.forward_s / one.table_s(table) for one in row]
            for size, row in self._rows.items()
        }
        self._seconds: dict[tuple[float, float, float], float] = {}
        """Those that were asked for."""

    def seconds(self, sequences: float, fed_each: float, usual_each: float) -> float:
        """A step of this many sequences: the table's time for what it feeds, corrected as steps
        are that feed as usual, and those steps' host time.

        Between two batch sizes it is linear in the sequences.
        """
        asked = (sequences, fed_each, usual_each)
        known = self._seconds.get(asked)
        if known is None:
            known = self._seconds[asked] = self._new_seconds(*asked)
        return known

    def _new_seconds(self, sequences: float, fed_each: float, usual_each: float) -> float:
        low, high, share = self._around(sequences)
        below = self._row_seconds(low, fed_each, usual_each)
        if low == high:
            return below
        return below + share * (self._row_seconds(high, fed_each, usual_each) - below)

    def _around(self, sequences: float) -> tuple[int, int, float]:
        """The batch sizes beside this number, and how far it lies from the first to the second."""
        sizes = list(self._rows)
        place = bisect_left(sizes, sequences)
        if place == len(sizes) or not place or sizes[place] == sequences:
            nearest = sizes[min(place, len(sizes) - 1)]
            return nearest, nearest, 0.0
        low, high = sizes[place - 1], sizes[place]
        return low, high, (sequences - low) / (high - low)

    def _row_seconds(self, sequences: int, fed_each: float, usual_each: float) -> float:
        fed, usual = sequences * fed_each, sequences * usual_each
        timed = self._rows[sequences]
        hosts = [one.step_s - one.forward_s for one in timed]
        places = [one.fed for one in timed]
        factor = _between(places, self._factors[sequences], usual)
        return self._table.seconds(fed, sequences) * factor + _between(places, hosts, usual)

    def prefill_s(self, prompt_tokens: int, sequences: int, fed_each: float) -> float:
        """The prompts' time, in proportion to their tokens; the nearest batch size's."""
        nearest = min(self._rows, key=lambda size: abs(size - sequences))
        timed = self._rows[nearest]
        rates = [one.prefill_s / one.prompt_tokens for one in timed]
        return prompt_tokens * _between([one.fed for one in timed], rates, nearest * fed_each)


def _between(places: Sequence[float], values: Sequence[float], place: float) -> float:
    """Along the logarithm of places, and level beyond the ends."""
    at = bisect_left(places, place)
    if at == 0 or at == len(places):
        return values[min(at, len(values) - 1)]
    low, high = places[at - 1], places[at]
    share = (log(place) - log(low)) / (log(high) - log(low))
    return values[at - 1] + share * (values[at] - values[at - 1])


def knee(table: CostTable, sequences: int = 1) -> int:
    """The most fed tokens whose forward takes at most 1.25 times that of one token a sequence.

    Tokens up to there are nearly free; whole tokens between the measured points, up to the last.
    """
    points = next((points for count, points in table.rows if count == sequences), table.rows[0][1])
    most = KNEE * table.seconds(points[0][0], sequences)
    found = points[0][0]
    for fed in range(points[0][0], points[-1][0] + 1):
        if table.seconds(fed, sequences) > most:
            break
        found = fed
    return found
