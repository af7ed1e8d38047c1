"""What a source of drafts that costs time has brought, and whether it is used in a step."""

from __future__ import annotations

_TRIAL_STEPS = 24  # until a window fills, makes n-grams, and the text can use them
_MEMORY = 1.0 / 64.0  # weight of a step in the average


class SourceBudget:
    """The recent gain of a source that costs time, and the time saved up for trials.

    Args:
        gain: accepted tokens a step that no other source ranked as high, before any trial.
        share: of the time of plain steps, for trials.
        steps: of a trial.
        first: begin with a trial, in which few steps replace the gain from before it.
    """

    def __init__(
        self, gain: float, share: float, steps: int = _TRIAL_STEPS, *, first: bool = False
    ) -> None:
        self._gain, self._share, self._steps = gain, share, steps
        self._saved_s = 0.0
        self._trial = steps if first else 0
        self._weight = 1.0 if first else _MEMORY
        """Weight of a step in the average, which falls to that of all later ones."""

    def pays(self, cost_s: float, token_s: float) -> bool:
        """Return True if every sequence should use it.

        Args:
            cost_s: seconds that it adds to a step.
            token_s: average seconds of a committed token.
        """
        return self._gain * token_s > cost_s

    def tries(self, cost_s: float, plain_s: float) -> bool:
        """Return True for a trial of a source that does not pay.

        Args:
            plain_s: seconds of the step without drafts.
        """
        if not self._trial:
            self._saved_s += self._share * plain_s
            if self._saved_s < self._steps * cost_s:
                return False
            self._saved_s, self._trial = 0.0, self._steps
        self._trial -= 1
        return True

    def brought(self, tokens: float) -> None:
        """Record accepted tokens of a sequence that used it and that no other source ranked as
        high."""
        self._gain += (tokens - self._gain) * self._weight
        self._weight = max(_MEMORY, self._weight / (1.0 + self._weight))
