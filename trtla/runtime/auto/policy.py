"""How much of its draft each sequence feeds in a step: what earns more tokens than its time costs.

Plain Python: costs come from a `CostTable`, chances from what guesses would have been accepted.
That is seen without feeding them, when the text goes on: looking costs no forward. Only the window
must be fed to be judged. Nothing here can change a text; times it is told may change its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trtla.runtime.auto.chances import Acceptance
from trtla.runtime.auto.pilot import NOTHING, Pilot
from trtla.runtime.auto.step_costs import StepCosts
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import Drafter, StepLimit
from trtla.settings.lookahead import LookaheadConfig

_MARGIN = 0.2  # what a draft must earn beyond its cost, as a share of what it should bring
_LOOK_MARGIN = 3.0  # what a look must save, in its own cost
_LEAST_CHANCE = 0.004  # of a token to be accepted, where feeding it costs nothing
_SHORTEST_NAP, _LONGEST_NAP = 16, 256  # that a sequence in which nothing pays comes to, in steps
_FIRST_LOOK_S = 40e-6  # what a look is expected to take
_TRIAL_SHARE = 0.01  # of the time of plain steps, for drafts that only show what they cost
_LOOK_SHARE = 0.005  # of the time of plain steps, for looks of which nothing comes
_MEMORY = 1.0 / 64.0  # what a step counts in the averages

_Offer = tuple[float, float, int, Pilot, int]
"""A guess's leading tokens: what each should bring, all of them, their number, whose, its rank."""


class AutoPolicy:
    """Chooses every sequence's share of a step so that tokens per second are highest.

    A step is worth its expected tokens less `rate` x its seconds, the rate being what is reached on
    average: that is the way to the highest long-run rate (renewal reward). Guesses are taken from
    the densest on as long as this grows.
    """

    def __init__(self, table: CostTable, clock: Callable[[], float] = time.thread_time) -> None:
        self._costs, self._clock = StepCosts(table), clock
        self._shared: dict[int, Acceptance] = {}
        self._speed_up = 1.0
        self._window = WindowBudget()
        self._looking_s = _FIRST_LOOK_S
        """Of one sequence's search for guesses."""
        self._trials_s = 0.0
        """Time saved up for drafts that only show what they cost."""
        self._worth = 2.0 * _LOOK_MARGIN * self._looking_s
        self._now = self._last = self._due = 0

    def use(self, table: CostTable) -> None:
        """Go on with a table that knows more."""
        self._costs.use(table)

    def join(self, triple: LookaheadConfig, drafter: Drafter, text: list[int]) -> Pilot:
        """Take a sequence in; its chances start with those of the ones before it.

        Args:
            text: its output, which grows.
        """
        drafter.lazy_pooling = True
        length = triple.ngram_size - 1
        shared = self._shared.setdefault(length, Acceptance.prior(length))
        awake = self._worth >= _LOOK_MARGIN * self._looking_s
        return Pilot(triple, drafter, shared.child(), text, self._worth, awake=awake)

    def wake(self) -> None:
        """A sequence begins to generate: look at all of them in the next step."""
        self._due = 0

    @property
    def sleeps_on(self) -> bool:
        """Whether there is nothing to do for any sequence in the next step."""
        return self._now + 1 < self._due

    def skip(self) -> None:
        """The next step is plain for all sequences: `plan` for steps that are slept through."""
        self._now += 1

    def plan(self, pilots: Sequence[Pilot], others: int = 0) -> bool:
        """Set the pilots' limits for the next step; False: none feeds more than its input.

        Args:
            others: tokens that other sequences feed in it.
        """
        started = self._clock()
        self._now = now = self._now + 1
        count, awake = len(pilots), []
        for pilot in pilots:
            self._see_window(pilot)
            if now >= pilot.due and pilot.look(now):
                awake.append(pilot)
        windows = self._feed_windows(pilots, count + others)
        base = count + others + windows
        saved = self._choose(self._offers(awake, base, count), base, count) if awake else {}
        tried = not others and self._try_larger(awake, base, count)
        cost = 0.0 if tried else _LOOK_MARGIN * self._looking_s  # a trial is looked at in any case
        longest = self._longest_nap(base, count)
        for pilot in awake:
            pilot.earned(saved.get(pilot, 0.0), cost, now, longest)
            self._worth += (pilot.worth - self._worth) * _MEMORY
        self._last, fed = now, bool(saved or windows or tried)
        self._due = now + 1 if fed else min([pilot.due for pilot in pilots], default=0)
        if awake:
            each = min((self._clock() - started) / len(awake), 4.0 * self._looking_s)
            self._looking_s += (each - self._looking_s) / 32.0
        return fed

    def _see_window(self, pilot: Pilot) -> None:
        """Judge the window that was fed in the step before, and forget that step's limit."""
        if pilot.limit.with_window:
            self._window.saw(pilot.acceptance.from_window - pilot.from_window_before)
        pilot.limit = NOTHING

    def _longest_nap(self, base: int, sequences: int) -> int:
        """Steps between looks of which nothing comes, so that they take a small share of time."""
        wanted = sequences * self._looking_s / (_LOOK_SHARE * self._costs.seconds(base, sequences))
        nap = _SHORTEST_NAP
        while nap < min(wanted, _LONGEST_NAP):
            nap *= 2
        return nap

    def _feed_windows(self, pilots: Sequence[Pilot], base: int) -> int:
        """Switch windows on where they pay, or where one is tried; the tokens that they feed."""
        sizes = [pilot.window_tokens for pilot in pilots]
        plain = self._costs.seconds(base, len(pilots))
        ahead = self._costs.seconds(base + sum(sizes), len(pilots))
        cost = (ahead - plain) / len(pilots)
        if self._window.pays(cost, 1.0 / self._rate(base, len(pilots))):
            chosen = len(pilots)
        elif self._window.tries(ahead - plain, plain, self._now - self._last):
            chosen = 1
        else:
            return 0
        for pilot in pilots[:chosen]:
            pilot.feed_window(self._now)
        return sum(sizes[:chosen])

    def _offers(self, pilots: Sequence[Pilot], base: int, sequences: int) -> list[_Offer]:
        """What is worth its cost in the cheapest case, densest first."""
        least = max(_LEAST_CHANCE, self._rate(base, sequences) * self._slope(base, sequences))
        offers: list[_Offer] = []
        for pilot in pilots:
            cuts = pilot.acceptance.cuts(pilot.guesses, least)
            offers += [
                (value / length, value, length, pilot, rank)
                for rank, (length, value) in enumerate(cuts)
                if length
            ]
        offers.sort(key=_density, reverse=True)
        return offers

    def _choose(self, offers: list[_Offer], base: int, sequences: int) -> dict[Pilot, float]:
        """Take the densest offers whose sum is worth the most; seconds that they save, by pilot."""
        if not offers:
            return {}
        rate, start = self._rate(base, sequences), self._costs.seconds(base, sequences)
        best, taken, tokens, value = 0.0, 0, base, 0.0
        for count, offer in enumerate(offers, 1):
            tokens += offer[2]
            value += offer[1] * (1.0 - _MARGIN)
            worth = value - rate * (self._costs.seconds(tokens, sequences) - start)
            if worth > best:
                best, taken = worth, count
        offers = offers[:taken]
        share = best / rate / max(1e-9, sum(offer[1] for offer in offers))
        saved: dict[Pilot, float] = {}
        for offer in offers:
            saved[offer[3]] = saved.get(offer[3], 0.0) + offer[1] * share
        _set_limits(offers)
        return saved

    def _try_larger(self, pilots: Sequence[Pilot], base: int, sequences: int) -> bool:
        """Now and then feed more than pays, where nothing is known of steps of that size."""
        steps = self._now - self._last
        self._trials_s += _TRIAL_SHARE * steps * self._costs.seconds(base, sequences)
        longer = {pilot: lengths for pilot in pilots if (lengths := _longer(pilot))}
        chosen = base + sum(sum(pilot.limit.guess_lengths) for pilot in pilots)
        tokens = base + sum(map(sum, longer.values()))
        if tokens <= chosen or self._costs.knows(tokens, sequences):
            return False
        cost = self._costs.seconds(tokens, sequences) - self._costs.seconds(chosen, sequences)
        if self._trials_s < cost:
            return False
        self._trials_s = 0.0
        for pilot, lengths in longer.items():
            pilot.limit = StepLimit(lengths, pilot.limit.with_window)
        return True

    def _rate(self, base: int, sequences: int) -> float:
        """Tokens a second that this batch reaches."""
        return sequences * self._speed_up / self._costs.seconds(base, sequences)

    def _slope(self, base: int, sequences: int) -> float:
        """Seconds that a token costs at least, seen over a step of one more token a sequence."""
        ahead = self._costs.seconds(base + 8 * sequences, sequences)
        return (ahead - self._costs.seconds(base, sequences)) / (8 * sequences)

    def record(self, fed: int, base: int, sequences: int, committed: int, seconds: float) -> None:
        """Learn from a finished step.

        Args:
            fed: tokens of all sequences in it; `base` of them would have been fed without drafts.
            sequences: those under the policy, which committed `committed` tokens together.
            seconds: what the step took, host work included.
        """
        reached = 1.0
        if fed > base:
            plain, whole = (self._costs.seconds(tokens, sequences) for tokens in (base, fed))
            reached = max(1.0, min(committed / sequences * plain / whole, 8.0))
        self._speed_up += (reached - self._speed_up) * _MEMORY
        if base == sequences:  # else prompts or others' drafts took part
            self._costs.record(fed, sequences, seconds)


def _density(offer: _Offer) -> float:
    return offer[0]


def _longer(pilot: Pilot) -> tuple[int, ...]:
    """A pilot's lengths, with twice as much of its best guess; empty where it has none."""
    if not pilot.guesses:
        return ()
    first, *others = pilot.limit.guess_lengths or (0,)
    return (min(len(pilot.guesses[0].tokens), max(1, 2 * first)), *others)


def _set_limits(offers: list[_Offer]) -> None:
    """Put the offers into their pilots' limits."""
    lengths: dict[Pilot, list[int]] = {}
    for _, _, length, pilot, rank in offers:
        own = lengths.setdefault(pilot, [])
        own += [0] * (rank + 1 - len(own))
        own[rank] = length
    for pilot, own in lengths.items():
        pilot.limit = StepLimit(tuple(own), pilot.limit.with_window)


_FIRST_GAIN = 0.15  # accepted tokens a step that only the window's n-grams bring, before any trial
_WINDOW_MEMORY = 1.0 / 64.0
_WINDOW_TRIAL_SHARE = 0.005  # of the time of plain steps
_TRIAL_STEPS = 24  # the window fills, makes n-grams, and the text has time to use them


class WindowBudget:
    """What the window has brought lately, and the time saved up for its next trial."""

    def __init__(self) -> None:
        self._gain = _FIRST_GAIN
        self._saved_s = 0.0
        self._trial = 0

    def pays(self, cost_s: float, token_s: float) -> bool:
        """Whether every sequence should feed its window.

        Args:
            cost_s: what a window adds to the step.
            token_s: what a committed token takes on average.
        """
        return self._gain * token_s > cost_s

    def tries(self, cost_s: float, plain_s: float, steps: int = 1) -> bool:
        """Where it does not pay: whether one sequence feeds it all the same, to see.

        Args:
            plain_s: what the step takes without drafts.
            steps: since this was asked last.
        """
        if not self._trial:
            self._saved_s += _WINDOW_TRIAL_SHARE * plain_s * steps
            if self._saved_s < _TRIAL_STEPS * cost_s:
                return False
            self._saved_s, self._trial = 0.0, _TRIAL_STEPS
        self._trial -= 1
        return True

    def saw(self, tokens: int) -> None:
        """A sequence that fed its window accepted this many tokens of the window's own n-grams."""
        self._gain += (tokens - self._gain) * _WINDOW_MEMORY
