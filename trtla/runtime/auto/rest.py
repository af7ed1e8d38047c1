"""Which sequences are planned for: those whose drafts bring more than it costs to plan them."""

from __future__ import annotations

FIRST_WORTH = 0.5  # tokens a step, before any plan
_MEMORY = 1.0 / 8.0  # what a plan counts
_LONGEST_REST = 16  # steps


class Rest:
    """Of one sequence: it rests for a step, for two, for four, as long as plans are worth little.

    While it rests it feeds its input alone, and nobody reads its rows.

    Args:
        worth: tokens a step that plans are expected to bring, less what feeding them costs.
    """

    def __init__(self, worth: float = FIRST_WORTH) -> None:
        self._worth = worth
        self._length = self._left = 0

    def wakes(self) -> bool:
        """Whether the next step is planned; called once a step."""
        self._left -= 1
        return self._left < 0

    def saw(self, worth: float, planning: float) -> None:
        """Take what a plan is worth.

        Args:
            worth: tokens that it is expected to bring, less what feeding it costs.
            planning: what planning costs, in tokens of the batch.
        """
        self._worth += (worth - self._worth) * _MEMORY
        rests = self._worth < planning
        self._length = min(max(1, 2 * self._length), _LONGEST_REST) if rests else 0
        self._left = self._length
