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

from trtla.runtime.cost_table import CostTable

KNEE = 1.25
"""Steps of up to this many plain steps' time count as cheap."""


class StepClock(Protocol):
    """Says what steps take."""

    def seconds(self, sequences: float, fed_each: float) -> float:
        """A step of this many sequences that feed so many tokens each, host work included."""

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

    def seconds(self, sequences: float, fed_each: float) -> float:
        """A step of this many sequences that feed so many tokens each, host work included.

        Between two batch sizes it is linear in the sequences.
        """
        low, high, share = self._around(sequences)
        below = self._row_seconds(low, fed_each)
        return below if low == high else below + share * (self._row_seconds(high, fed_each) - below)

    def _around(self, sequences: float) -> tuple[int, int, float]:
        """The batch sizes beside this number, and how far it lies from the first to the second."""
        sizes = list(self._rows)
        place = bisect_left(sizes, sequences)
        if place == len(sizes) or not place or sizes[place] == sequences:
            nearest = sizes[min(place, len(sizes) - 1)]
            return nearest, nearest, 0.0
        low, high = sizes[place - 1], sizes[place]
        return low, high, (sequences - low) / (high - low)

    def _row_seconds(self, sequences: int, fed_each: float) -> float:
        fed = sequences * fed_each
        timed = self._rows[sequences]
        factors = [one.forward_s / self._table.seconds(one.fed, sequences) for one in timed]
        hosts = [one.step_s - one.forward_s for one in timed]
        places = [one.fed for one in timed]
        forward = self._table.seconds(fed, sequences) * _between(places, factors, fed)
        return forward + _between(places, hosts, fed)

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
