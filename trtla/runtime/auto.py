"""How much of its draft each sequence feeds in a step: what earns more tokens than its time costs.

Plain Python: costs come from a `CostTable`, chances from what guesses would have been accepted.
That is seen without feeding them, when the text goes on: looking costs no forward. Only the window
must be fed to be judged. Nothing here can change a text; times it is told may change its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from trtla.lookahead import LookaheadConfig
from trtla.runtime.acceptance import Acceptance
from trtla.runtime.cost_table import CostTable
from trtla.runtime.draft import Guess, StepLimit
from trtla.runtime.window_budget import WindowBudget

NOTHING = StepLimit()
"""The input token alone: the step of (1,1,0)."""

_MARGIN = 0.2  # what a draft must earn beyond its cost, as a share of what it should bring
_LOOK_MARGIN = 3.0  # what a look must save, in its own cost
_LEAST_CHANCE = 0.004  # of a token to be accepted, where feeding it costs nothing
_LONGEST_NAP = 16
_MEMORY = 1.0 / 64.0  # what a step counts in the averages


class Guesser(Protocol):
    """A drafter that tells what it could propose."""

    patient: bool

    def guesses(self) -> list[Guess]:
        """Continuations of the input token, the best first."""


@dataclass(slots=True, eq=False)
class Pilot:
    """One sequence under the policy: what was seen of its guesses, and how long it looks away."""

    triple: LookaheadConfig
    drafter: Guesser
    acceptance: Acceptance
    worth: float
    """Seconds that a look at the guesses has saved lately."""
    guesses: list[Guess] = field(default_factory=list)
    limit: StepLimit = NOTHING
    from_window_before: int = 0
    """The acceptance's `from_window` when a window was fed last."""
    _asleep: int = 0
    _idle: int = 0

    def look(self) -> bool:
        """Find this step's guesses, unless nothing has paid for a while."""
        self.limit = NOTHING
        if self._asleep > 0:
            self._asleep -= 1
            self.guesses = []
            return False
        self.guesses = self.drafter.guesses()[: self.triple.verification_set_size]
        self.acceptance.watch(self.guesses)
        return True

    def feed_window(self) -> None:
        """Feed the window in this step, and look at what it brings in the next."""
        self.limit = replace(self.limit, with_window=True)
        self.from_window_before = self.acceptance.from_window
        self._asleep = 0

    def earned(self, seconds: float, cost: float) -> None:
        """Note what a look at the guesses saves; look away, ever longer, while it costs more."""
        self.worth += (seconds - self.worth) / 16.0
        if self.worth >= cost:
            self._idle = 0
        else:
            self._idle = min(self._idle + 1, _LONGEST_NAP.bit_length() - 1)
            self._asleep = (1 << self._idle) - 1

    def committed(self, tokens: Sequence[int]) -> None:
        """Learn from a step's tokens."""
        if self.acceptance.saw(tokens) >= 2:
            self._asleep = self._idle = 0


@dataclass(slots=True)
class _Offer:
    """A guess's leading tokens: what they should bring, for how many fed tokens."""

    pilot: Pilot
    rank: int
    length: int
    value: float

    @property
    def density(self) -> float:
        return self.value / self.length

    def take(self) -> None:
        """Put it into the pilot's limit."""
        lengths = list(self.pilot.limit.guess_lengths)
        lengths += [0] * (self.rank + 1 - len(lengths))
        lengths[self.rank] = self.length
        self.pilot.limit = replace(self.pilot.limit, guess_lengths=tuple(lengths))


class AutoPolicy:
    """Chooses every sequence's share of a step so that tokens per second are highest.

    A step is worth its expected tokens less `rate` x its seconds, the rate being what is reached on
    average: that is the way to the highest long-run rate (renewal reward). Guesses are taken from
    the densest on as long as this grows.
    """

    def __init__(self, table: CostTable, clock: Callable[[], float] = time.thread_time) -> None:
        self._table, self._clock = table, clock
        self._shared: dict[int, Acceptance] = {}
        self._speed_up = 1.0
        self._overhead = _Overhead()
        self._window = WindowBudget()
        self._worth = 2.0 * self._overhead.looking_s

    def join(self, triple: LookaheadConfig, drafter: Guesser) -> Pilot:
        """Take a sequence in; its chances start with those of the ones before it."""
        drafter.patient = True
        length = triple.ngram_size - 1
        shared = self._shared.setdefault(length, Acceptance.prior(length))
        return Pilot(triple, drafter, shared.child(), self._worth)

    def plan(self, pilots: Sequence[Pilot], others: int = 0) -> None:
        """Set the pilots' limits for the next step.

        Args:
            others: tokens that other sequences feed in it.
        """
        started = self._clock()
        for pilot in pilots:
            if pilot.limit.with_window:
                self._window.saw(pilot.acceptance.from_window - pilot.from_window_before)
                pilot.from_window_before = pilot.acceptance.from_window
        awake = [pilot for pilot in pilots if pilot.look()]
        base = len(pilots) + others
        base += self._feed_windows(pilots, base)
        saved = self._choose(self._offers(awake, base, len(pilots)), base, len(pilots))
        cost = _LOOK_MARGIN * self._overhead.looking_s
        for pilot in awake:
            pilot.earned(saved.get(id(pilot), 0.0), cost)
            self._worth += (pilot.worth - self._worth) / 64.0
        self._overhead.looked(self._clock() - started, len(awake))

    def _feed_windows(self, pilots: Sequence[Pilot], base: int) -> int:
        """Switch windows on where they pay, or where one is tried; the tokens that they feed."""
        sizes = [_window_tokens(pilot.triple) for pilot in pilots]
        plain = self._table.seconds(base, len(pilots))
        ahead = self._table.seconds(base + sum(sizes), len(pilots))
        cost = (ahead - plain) / len(pilots)
        if self._window.pays(cost, 1.0 / self._rate(base, len(pilots))):
            chosen = list(pilots)
        elif self._window.tries(ahead - plain, plain):
            chosen = list(pilots[:1])
        else:
            return 0
        for pilot in chosen:
            pilot.feed_window()
        return sum(sizes[: len(chosen)])

    def _offers(self, pilots: Sequence[Pilot], base: int, sequences: int) -> list[_Offer]:
        """What is worth its cost in the cheapest case, densest first."""
        least = max(_LEAST_CHANCE, self._rate(base, sequences) * self._slope(base, sequences))
        offers = []
        for pilot in pilots:
            for rank, guess in enumerate(pilot.guesses):
                chances = pilot.acceptance.chances(guess.context, rank)
                length = next((i for i, c in enumerate(chances) if c < least), len(chances))
                if length:
                    offers.append(_Offer(pilot, rank, length, sum(chances[:length])))
        return sorted(offers, key=lambda offer: -offer.density)

    def _choose(self, offers: list[_Offer], base: int, sequences: int) -> dict[int, float]:
        """Take the densest offers whose sum is worth the most; seconds that they save, by pilot."""
        if not offers:
            return {}
        rate, start = self._rate(base, sequences), self._table.seconds(base, sequences)
        best, taken, tokens, value = 0.0, 0, base, 0.0
        for count, offer in enumerate(offers, 1):
            tokens += offer.length
            value += offer.value * (1.0 - _MARGIN)
            seconds = self._table.seconds(tokens, sequences) - start + self._overhead.seconds
            if value - rate * seconds > best:
                best, taken = value - rate * seconds, count
        saved: dict[int, float] = {}
        share = best / rate / max(1e-9, sum(offer.value for offer in offers[:taken]))
        for offer in offers[:taken]:
            offer.take()
            saved[id(offer.pilot)] = saved.get(id(offer.pilot), 0.0) + offer.value * share
        return saved

    def _rate(self, base: int, sequences: int) -> float:
        """Tokens a second that this batch reaches."""
        return sequences * self._speed_up / self._table.seconds(base, sequences)

    def _slope(self, base: int, sequences: int) -> float:
        """Seconds that a token costs at least, seen over a step of one more token a sequence."""
        ahead = self._table.seconds(base + 8 * sequences, sequences)
        return (ahead - self._table.seconds(base, sequences)) / (8 * sequences)

    def record(self, fed: int, base: int, sequences: int, committed: int, seconds: float) -> None:
        """Learn from a finished step.

        Args:
            fed: tokens of all sequences in it; `base` of them would have been fed without drafts.
            sequences: those under the policy, which committed `committed` tokens together.
            seconds: what the step took, host work included.
        """
        plain, whole = (self._table.seconds(n, sequences) for n in (base, fed))
        self._overhead.record(seconds - whole, plain, drafted=fed > base)
        reached = committed / sequences * plain / (whole + self._overhead.seconds * (fed > base))
        self._speed_up += (max(1.0, min(reached, 8.0)) - self._speed_up) / 64.0


def _window_tokens(triple: LookaheadConfig) -> int:
    """Tokens of a full window beside the input token: W (N - 1) - 1."""
    return triple.window_size * (triple.ngram_size - 1) - 1


class _Overhead:
    """Host work that drafts bring beyond their forward, as measured: seconds a step."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.looking_s = 40e-6
        """Of one sequence's search for guesses."""
        self._plain = self._drafted = 0.0
        self._seen = [0, 0]

    def looked(self, seconds: float, times: int) -> None:
        """Take the time of several searches."""
        if times:
            each = min(seconds / times, 4.0 * self.looking_s)
            self.looking_s += (each - self.looking_s) / 32.0

    def record(self, excess: float, plain: float, *, drafted: bool) -> None:
        """Take a step's seconds beyond the table's; outliers count no more than a plain step."""
        excess = max(-plain, min(excess, plain))
        self._seen[drafted] += 1
        share = max(1.0 / self._seen[drafted], _MEMORY)
        if drafted:
            self._drafted += (excess - self._drafted) * share
        else:
            self._plain += (excess - self._plain) * share
        if not drafted:  # what is not fed is not measured: give it another chance with time
            self.seconds *= 1.0 - _MEMORY
        elif min(self._seen) >= 8:
            self.seconds = max(0.0, min(self._drafted - self._plain, plain / 2.0))
