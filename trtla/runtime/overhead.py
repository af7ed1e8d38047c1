"""Host work that drafts bring beyond their forward, as measured: plain numbers."""

from __future__ import annotations

_MEMORY = 1.0 / 64.0  # what a step counts in the averages


class Overhead:
    """Seconds a step that drafts cost beside the forward, and seconds of a look at guesses."""

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
