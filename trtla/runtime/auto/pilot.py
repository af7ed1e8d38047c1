"""One sequence under the policy of `auto`: what came of its guesses, and how long it looks away.

A pilot that sleeps does nothing at all. Its drafter is told of the text when it wakes.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtla.runtime.auto.chances import Acceptance
from trtla.runtime.draft import Drafter, Guess, StepLimit
from trtla.settings.lookahead import LookaheadConfig

NOTHING = StepLimit()
"""The input token alone: the step of (1,1,0)."""

_JUDGED_AFTER = 2  # steps: what a look's guesses have come to is worth another look by then
_SHORT_NAP = 16  # longest naps where looks are cheap beside the steps
_NEARLY = 2.0  # what is worth this part of its cost may soon pay
_FIRST_NAP = 16  # of a sequence that starts asleep


class Pilot:
    """One sequence under the policy.

    Args:
        text: the output so far; its owner appends to it.
        worth: seconds that a look at the guesses has saved lately, over all sequences.
        awake: look in the first step; else after some.
    """

    def __init__(
        self,
        triple: LookaheadConfig,
        drafter: Drafter,
        acceptance: Acceptance,
        text: list[int],
        worth: float,
        *,
        awake: bool = True,
    ) -> None:
        self._most_guesses = triple.verification_set_size
        self.window_tokens = triple.window_size * (triple.ngram_size - 1) - 1
        """Of a full window, beside the input token."""
        self._drafter, self.acceptance = drafter, acceptance
        self.worth = worth
        self.guesses: list[Guess] = []
        self.limit = NOTHING
        self.from_window_before = 0
        """The acceptance's `from_window` when a window was fed last."""
        self.due = 0
        """The policy's step in which there is something to do for it."""
        self._text, self._known = text, 0
        self._look_at, self._idle = 0, 0
        self._starts_asleep = not awake
        self._keen = True
        """Whether guesses that came true are worth another look at once."""

    def learn(self, greedy: Sequence[int] = ()) -> int:
        """Tell the drafter of new text; how many tokens of a guess came true, at most."""
        new = self._text[self._known :]
        if not new:
            return 0
        self._known += len(new)
        self._drafter.observe(greedy, new)
        return self.acceptance.saw(self._text)

    def look(self, now: int) -> bool:
        """Find the guesses of step `now`, unless nothing has paid for a while."""
        if self._starts_asleep:
            self._starts_asleep, self._idle = False, _FIRST_NAP.bit_length() - 1
            self.due = self._look_at = _next(now, _FIRST_NAP)
        if now < self.due:
            return False
        if self.learn() >= 2 and self._keen:
            self._look_at, self._idle = now, self._idle // 2
        if now < self._look_at:
            self.due = self._look_at
            return False
        self.guesses = self._drafter.guesses()[: self._most_guesses]
        self.acceptance.watch(self.guesses, len(self._text))
        return True

    def feed_window(self, now: int) -> None:
        """Feed the window in this step, and look at what it brings in the next."""
        self.limit = StepLimit(self.limit.guess_lengths, with_window=True)
        self.from_window_before = self.acceptance.from_window
        self.learn()
        self.due = self._look_at = now + 1

    def earned(self, seconds: float, cost: float, now: int, longest: int) -> None:
        """Note what a look saves; look away, ever longer, while it costs more.

        Naps end where their length divides the step, so that sequences wake together.

        Args:
            seconds: that this step's look saves.
            cost: of a look.
            longest: nap in steps, a power of 2.
        """
        self.worth += (seconds - self.worth) / 16.0
        if self.worth >= cost or self.limit.with_window:
            self._idle = 0
            self.due = self._look_at = now + 1
            return
        self._idle = min(self._idle + 1, longest.bit_length() - 1)
        self.due = self._look_at = _next(now, 1 << self._idle)
        self._keen = longest <= _SHORT_NAP or _NEARLY * self.worth >= cost
        if self.guesses and self._keen:
            self.due = min(self.due, now + _JUDGED_AFTER)


def _next(now: int, period: int) -> int:
    """The first multiple of a period after `now`."""
    return (now // period + 1) * period
