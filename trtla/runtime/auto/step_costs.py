"""What a step takes: the cost table's forward, corrected by what steps really took.

Steps add host work, and a table may have been measured beside other work. Every step's seconds are
compared with the table's, so errors of the table wear off.
"""

from __future__ import annotations

import math

from trtla.runtime.costs import CostTable

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
