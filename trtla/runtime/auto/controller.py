"""One sequence under the policy of `auto`: what came of its guesses, and its backoff.

During backoff a controller does no work. Its drafter observes the text when it is searched again.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtla.runtime.auto.acceptance import Acceptance
from trtla.runtime.draft import Drafter, Guess, StepLimit
from trtla.settings.lookahead import LookaheadConfig

NOTHING = StepLimit()
"""The input token alone: the step of (1,1,0)."""

_JUDGED_AFTER = 2  # steps after which it is known what came of a search's guesses
_SHORT_BACKOFF = 16  # steps; longest backoff where a search is cheap beside a step
_NEARLY = 2.0  # a search that saves this part of its cost may soon pay
_FIRST_BACKOFF = 16  # steps; backoff of a sequence that starts idle


class DraftController:
    """One sequence under the policy.

    Args:
        text: the output so far; its owner appends to it.
        worth: seconds that a search has saved lately, averaged over all sequences.
        active: search in the first step; else after `_FIRST_BACKOFF`.
    """

    def __init__(
        self,
        triple: LookaheadConfig,
        drafter: Drafter,
        acceptance: Acceptance,
        text: list[int],
        worth: float,
        *,
        active: bool = True,
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
        self._search_at, self._backoff = 0, 0
        self._starts_idle = not active
        self._retry_early = True
        """Whether guesses that came true end the backoff early."""

    def learn(self, greedy: Sequence[int] = ()) -> int:
        """Let the drafter observe new text; the most tokens of a guess that came true."""
        new = self._text[self._known :]
        if not new:
            return 0
        self._known += len(new)
        self._drafter.observe(greedy, new)
        return self.acceptance.saw(self._text)

    def search(self, now: int) -> bool:
        """Find the guesses of step `now`, unless nothing has paid for a while."""
        if self._starts_idle:
            self._starts_idle, self._backoff = False, _FIRST_BACKOFF.bit_length() - 1
            self.due = self._search_at = _next(now, _FIRST_BACKOFF)
        if now < self.due:
            return False
        if self.learn() >= 2 and self._retry_early:
            self._search_at, self._backoff = now, self._backoff // 2
        if now < self._search_at:
            self.due = self._search_at
            return False
        self.guesses = self._drafter.guesses()[: self._most_guesses]
        self.acceptance.watch(self.guesses, len(self._text))
        return True

    def feed_window(self, now: int) -> None:
        """Feed the window in this step, and search in the next."""
        self.limit = StepLimit(self.limit.guess_lengths, with_window=True)
        self.from_window_before = self.acceptance.from_window
        self.learn()
        self.due = self._search_at = now + 1

    def earned(self, seconds: float, cost: float, now: int, longest: int) -> None:
        """Record what a search saves; back off exponentially while it costs more.

        A backoff ends at a multiple of its length, so that sequences are searched together.

        Args:
            seconds: saved by this step's search.
            cost: seconds of a search.
            longest: longest backoff in steps, a power of 2.
        """
        self.worth += (seconds - self.worth) / 16.0
        if self.worth >= cost or self.limit.with_window:
            self._backoff = 0
            self.due = self._search_at = now + 1
            return
        self._backoff = min(self._backoff + 1, longest.bit_length() - 1)
        self.due = self._search_at = _next(now, 1 << self._backoff)
        self._retry_early = longest <= _SHORT_BACKOFF or _NEARLY * self.worth >= cost
        if self.guesses and self._retry_early:
            self.due = min(self.due, now + _JUDGED_AFTER)


def _next(now: int, period: int) -> int:
    """The first multiple of a period after `now`."""
    return (now // period + 1) * period
