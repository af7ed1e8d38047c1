"""The choice whether a trained head drafts in a step, and how deep.

A head's first row costs a forward for the pairs that are new, and each further one another forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtla.runtime.auto.budget import SourceBudget
from trtla.runtime.drafters.head import HeadDraft, HeadDrafters
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.tree.library import Unread

_FIRST_GAIN = 1.0  # accepted tokens a step that only the head brings, before any step
_SHARE = 0.01  # of the time of plain steps, for trials of a head that does not pay
_TRIAL_STEPS = 12
_MEMORY = 1.0 / 8.0  # weight of a step in the averages of seconds
_FEW = 16  # pairs of a sequence in a step; more are of a prompt, whose time passes once


class HeadPolicy:
    """Has one head draft for the sequences of a step.

    Args:
        clock: elapsed seconds.
    """

    def __init__(self, heads: HeadDrafters, clock: Callable[[], float]) -> None:
        self._heads, self._clock = heads, clock
        self._budget = SourceBudget(_FIRST_GAIN, _SHARE, _TRIAL_STEPS, first=True)
        self._draft_s = 0.0
        """Seconds of one sequence's whole draft."""
        self._levels_s: dict[int, float] = {}
        """Seconds of a forward that reads one token of each of some sequences, by the logarithm of
        their number. The first such forward shows them, and no other follows in that step."""

    def draft(
        self, due: Sequence[TreeDrafter], plain_s: float, token_s: float, always: bool
    ) -> None:
        """Add the head's rows to the trees of these sequences, if that pays.

        Args:
            plain_s: seconds of the step without drafts.
            token_s: average seconds of a committed token.
            always: draft whatever it costs.
        """
        for drafter in due:
            if drafter.had_head:
                self._budget.brought(drafter.gained("head"))
            drafter.had_head = False
        cost = self._draft_s
        wanted = always or self._budget.pays(cost, token_s)
        wanted = wanted or self._budget.tries(cost * len(due), plain_s)
        self._heads.active = wanted
        if wanted:
            self._draft(due, token_s)

    def _draft(self, due: Sequence[TreeDrafter], token_s: float) -> None:
        started, before = self._clock(), self._heads.totals.pairs
        drafts = {}
        for drafter in due:
            if drafter.head is not None:
                drafts[HeadDraft(drafter.head, drafter.tree)] = drafter
        growing = self._heads.begin([*drafts])
        for draft in growing:
            drafts[draft].had_head = True
        drafted = len(growing)
        usual = self._heads.totals.pairs - before <= _FEW * drafted
        for level in range(len(self._heads.gains)):
            # A deeper row could not be fed, and its pair may have no slot.
            fed = [draft for draft in growing if drafts[draft].longest_path > level + 1]
            growing = self._extended(fed, level, token_s)
            if not growing:
                break
        seconds = self._clock() - started
        self._heads.totals.seconds += seconds
        self._heads.totals.drafts += drafted
        if drafted and usual:
            each = seconds / drafted
            self._draft_s += (each - self._draft_s) * (_MEMORY if self._draft_s else 1.0)

    def _extended(self, drafts: Sequence[HeadDraft], level: int, token_s: float) -> list[HeadDraft]:
        """Read one more token of all drafts, if what their rows bring is worth a forward."""
        grown: list[tuple[HeadDraft, Unread]] = []
        for draft in drafts:
            unread = draft.tree.unread()
            if unread is not None and unread.row == level:
                grown.append((draft, unread))
        if not grown:
            return []
        expected = sum([unread.value for _, unread in grown]) * self._heads.gains[level]
        width = len(grown).bit_length()
        cost = self._levels_s.get(width, 0.0)
        if expected * token_s <= cost or (level and not cost):
            return []
        started = self._clock()
        self._heads.extend(grown)
        seconds = self._clock() - started
        self._levels_s[width] = cost + (seconds - cost) * (_MEMORY if cost else 1.0)
        return [draft for draft, _ in grown]
