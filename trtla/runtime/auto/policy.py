"""How much of its draft each sequence feeds in a step: what earns more tokens than its time costs.

Costs come from a `CostTable`, chances from which guesses would have been accepted. That is known
without feeding them, once the text goes on. Only the window must be fed to be judged. Nothing here
can change a text; the times that are recorded may change how many steps it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trtla.runtime.auto.acceptance import Acceptance
from trtla.runtime.auto.controller import NOTHING, DraftController
from trtla.runtime.auto.step_costs import StepCosts
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import Drafter, StepLimit
from trtla.settings.lookahead import LookaheadConfig

_MARGIN = 0.2  # what a draft must earn beyond its cost, as a share of what it should bring
_SEARCH_MARGIN = 3.0  # what a search must save, in multiples of its own cost
_LEAST_CHANCE = 0.004  # of a token to be accepted, where feeding it costs nothing
_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 16, 256  # steps, of a sequence in which nothing pays
_FIRST_SEARCH_S = 40e-6  # what a search is expected to take
_TRIAL_SHARE = 0.01  # of the time of plain steps, for drafts that only show what they cost
_SEARCH_SHARE = 0.005  # of the time of plain steps, for searches that find nothing
_MEMORY = 1.0 / 64.0  # what a step counts in the averages

_Offer = tuple[float, float, int, DraftController, int]
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
        self._search_s = _FIRST_SEARCH_S
        """Of one sequence's search for guesses."""
        self._trials_s = 0.0
        """Time saved up for drafts that only show what they cost."""
        self._worth = 2.0 * _SEARCH_MARGIN * self._search_s
        self._now = self._last = self._due = 0

    def use(self, table: CostTable) -> None:
        """Go on with a table that knows more."""
        self._costs.use(table)

    def join(self, triple: LookaheadConfig, drafter: Drafter, text: list[int]) -> DraftController:
        """Take a sequence in; its chances start with those of the ones before it.

        Args:
            text: its output, which grows.
        """
        drafter.lazy_pooling = True
        length = triple.ngram_size - 1
        shared = self._shared.setdefault(length, Acceptance.prior(length))
        active = self._worth >= _SEARCH_MARGIN * self._search_s
        return DraftController(triple, drafter, shared.child(), text, self._worth, active=active)

    def reset_backoff(self) -> None:
        """A sequence begins to generate: search for all of them in the next step."""
        self._due = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do for any sequence in the next step."""
        return self._now + 1 < self._due

    def skip(self) -> None:
        """The next step is plain for all sequences: `plan` for steps skipped during backoff."""
        self._now += 1

    def plan(self, controllers: Sequence[DraftController], others: int = 0) -> bool:
        """Set the controllers' limits for the next step; False: none feeds more than its input.

        Args:
            others: tokens that other sequences feed in it.
        """
        started = self._clock()
        self._now = now = self._now + 1
        count, active = len(controllers), []
        for controller in controllers:
            self._see_window(controller)
            if now >= controller.due and controller.search(now):
                active.append(controller)
        windows = self._feed_windows(controllers, count + others)
        base = count + others + windows
        saved = self._choose(self._offers(active, base, count), base, count) if active else {}
        tried = not others and self._try_larger(active, base, count)
        cost = 0.0 if tried else _SEARCH_MARGIN * self._search_s  # a trial is judged in any case
        longest = self._longest_backoff(base, count)
        for controller in active:
            controller.earned(saved.get(controller, 0.0), cost, now, longest)
            self._worth += (controller.worth - self._worth) * _MEMORY
        self._last, fed = now, bool(saved or windows or tried)
        self._due = now + 1 if fed else min([own.due for own in controllers], default=0)
        if active:
            each = min((self._clock() - started) / len(active), 4.0 * self._search_s)
            self._search_s += (each - self._search_s) / 32.0
        return fed

    def _see_window(self, controller: DraftController) -> None:
        """Judge the window that was fed in the step before, and forget that step's limit."""
        if controller.limit.with_window:
            self._window.saw(controller.acceptance.from_window - controller.from_window_before)
        controller.limit = NOTHING

    def _longest_backoff(self, base: int, sequences: int) -> int:
        """Steps between searches that find nothing, so that these take a small share of time."""
        wanted = sequences * self._search_s / (_SEARCH_SHARE * self._costs.seconds(base, sequences))
        steps = _SHORTEST_BACKOFF
        while steps < min(wanted, _LONGEST_BACKOFF):
            steps *= 2
        return steps

    def _feed_windows(self, controllers: Sequence[DraftController], base: int) -> int:
        """Switch windows on where they pay, or where one is tried; the tokens that they feed."""
        sizes = [controller.window_tokens for controller in controllers]
        plain = self._costs.seconds(base, len(controllers))
        ahead = self._costs.seconds(base + sum(sizes), len(controllers))
        cost = (ahead - plain) / len(controllers)
        if self._window.pays(cost, 1.0 / self._rate(base, len(controllers))):
            chosen = len(controllers)
        elif self._window.tries(ahead - plain, plain, self._now - self._last):
            chosen = 1
        else:
            return 0
        for controller in controllers[:chosen]:
            controller.feed_window(self._now)
        return sum(sizes[:chosen])

    def _offers(
        self, controllers: Sequence[DraftController], base: int, sequences: int
    ) -> list[_Offer]:
        """What is worth its cost in the cheapest case, densest first."""
        least = max(_LEAST_CHANCE, self._rate(base, sequences) * self._slope(base, sequences))
        offers: list[_Offer] = []
        for controller in controllers:
            cuts = controller.acceptance.cuts(controller.guesses, least)
            offers += [
                (value / length, value, length, controller, rank)
                for rank, (length, value) in enumerate(cuts)
                if length
            ]
        offers.sort(key=_density, reverse=True)
        return offers

    def _choose(
        self, offers: list[_Offer], base: int, sequences: int
    ) -> dict[DraftController, float]:
        """Take the densest offers whose sum is worth the most; the seconds that each saves."""
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
        saved: dict[DraftController, float] = {}
        for offer in offers:
            saved[offer[3]] = saved.get(offer[3], 0.0) + offer[1] * share
        _set_limits(offers)
        return saved

    def _try_larger(
        self, controllers: Sequence[DraftController], base: int, sequences: int
    ) -> bool:
        """Now and then feed more than pays, where nothing is known of steps of that size."""
        steps = self._now - self._last
        self._trials_s += _TRIAL_SHARE * steps * self._costs.seconds(base, sequences)
        longer = {own: lengths for own in controllers if (lengths := _longer(own))}
        chosen = base + sum(sum(own.limit.guess_lengths) for own in controllers)
        tokens = base + sum(map(sum, longer.values()))
        if tokens <= chosen or self._costs.knows(tokens, sequences):
            return False
        cost = self._costs.seconds(tokens, sequences) - self._costs.seconds(chosen, sequences)
        if self._trials_s < cost:
            return False
        self._trials_s = 0.0
        for controller, lengths in longer.items():
            controller.limit = StepLimit(lengths, controller.limit.with_window)
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


def _longer(controller: DraftController) -> tuple[int, ...]:
    """A controller's lengths, with twice as much of its best guess; empty where it has none."""
    if not controller.guesses:
        return ()
    first, *others = controller.limit.guess_lengths or (0,)
    return (min(len(controller.guesses[0].tokens), max(1, 2 * first)), *others)


def _set_limits(offers: list[_Offer]) -> None:
    """Put the offers into their controllers' limits."""
    lengths: dict[DraftController, list[int]] = {}
    for _, _, length, controller, rank in offers:
        own = lengths.setdefault(controller, [])
        own += [0] * (rank + 1 - len(own))
        own[rank] = length
    for controller, own in lengths.items():
        controller.limit = StepLimit(tuple(own), controller.limit.with_window)


_FIRST_GAIN = 0.15  # accepted tokens a step that only the window's n-grams bring, before any trial
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
        self._gain += (tokens - self._gain) * _MEMORY
