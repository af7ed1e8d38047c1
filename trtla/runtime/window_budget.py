"""Whether the lookahead window pays: it costs its tokens now and brings n-grams later.

What it brings can only be seen by feeding it, so a small share of the time goes into trials.
"""

from __future__ import annotations

_FIRST_GAIN = 0.15  # accepted tokens a step that only the window's n-grams bring, before any trial
_MEMORY = 1.0 / 64.0
_TRIAL_SHARE = 0.005  # of the time of plain steps
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
            self._saved_s += _TRIAL_SHARE * plain_s * steps
            if self._saved_s < _TRIAL_STEPS * cost_s:
                return False
            self._saved_s, self._trial = 0.0, _TRIAL_STEPS
        self._trial -= 1
        return True

    def saw(self, tokens: int) -> None:
        """A sequence that fed its window accepted this many tokens of the window's own n-grams."""
        self._gain += (tokens - self._gain) * _MEMORY
