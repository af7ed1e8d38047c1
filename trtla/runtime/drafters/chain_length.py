"""How long a drafted chain may be: gamma tokens, fewer where the output's length leaves no room."""

from __future__ import annotations

from trtla.runtime.draft import StepLimit


class ChainLength:
    """The limit of one request.

    A step commits what is accepted and one token more, so the draft leaves room for that one: no
    token is fed that could never be accepted, and a text never needs more cache than its own.

    Args:
        gamma: most tokens of a draft.
        max_output_len: of the request; None: its end is not known.
    """

    def __init__(self, gamma: int, max_output_len: int | None) -> None:
        self._gamma, self._left = gamma, max_output_len

    def now(self, limit: StepLimit | None = None) -> int:
        """Most tokens to draft in this step; a chain is a drafter's only guess to a `limit`."""
        most = self._gamma if self._left is None else min(self._gamma, self._left - 1)
        if limit is None:
            return most
        return min(most, limit.guess_lengths[0]) if limit.guess_lengths else 0

    def commit(self, count: int) -> None:
        """Tokens have become output."""
        if self._left is not None:
            self._left -= count
