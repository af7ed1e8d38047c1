"""The choice whether a trained head drafts in a step, and how deep.

A head's first row costs a forward for the pairs that are new, and each further one another forward.
It reads where the other sources know little: a text that repeats itself needs no head, and pairs
that wait cost little more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtla.runtime.auto.budget import SourceBudget
from trtla.runtime.drafters.head import HeadDraft, HeadDrafter, HeadDrafters
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.tree.library import Unread

_FIRST_GAIN = 1.0  # accepted tokens a step that only the head brings, before any step
_SHARE = 0.01  # of the time of plain steps, for trials of a head that does not pay
_TRIAL_STEPS = 12
_LEARNING = 24  # drafts in which right tokens count that were not fed: chances are not learnt yet
_MEMORY = 1.0 / 8.0  # weight of a step in the averages of seconds
_FEW = 16  # pairs of a sequence in a step; more are of a prompt, whose time passes once
_PRIOR, _DECAY = 4.0, 1.0 - 1.0 / 64.0  # steps that the first gain counts as; weight of older steps


class _Average:
    """Seconds, of which the first replace the unknown and later ones count a little."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        weight = _MEMORY if self.seconds else 1.0
        self.seconds += (seconds - self.seconds) * weight


class HeadPolicy:
    """Has one head draft for the sequences of a step.

    Args:
        clock: elapsed seconds.
    """

    def __init__(self, heads: HeadDrafters, clock: Callable[[], float]) -> None:
        self._heads, self._clock = heads, clock
        self._budget = SourceBudget(_FIRST_GAIN, _SHARE, _TRIAL_STEPS, first=True)
        self._draft_s, self._first_s = _Average(), _Average()
        """Seconds of one sequence's whole draft, and of its first row."""
        self._levels_s: dict[int, _Average] = {}
        """Seconds of a forward that reads one token of each of some sequences, by the logarithm of
        their number. The first such forward shows them, and no other follows in that step."""
        self._gained, self._unknown = _PRIOR * _FIRST_GAIN, _PRIOR
        """Recent tokens that only the head brought, and the chance that others knew none."""

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
            if drafter.had_head and drafter.head is not None:
                self._brought(drafter.head, drafter.gained("head"))
            drafter.had_head = False
        cost = self._draft_s.seconds
        pays = self._budget.pays(cost, token_s)
        tried = always or (not pays and self._budget.tries(cost * len(due), plain_s))
        self._heads.active = pays or tried
        if pays or tried:
            self._draft(due, token_s, tried)

    def _brought(self, head: HeadDrafter, tokens: float) -> None:
        if self._heads.totals.drafts < _LEARNING and head.was_right:
            tokens = max(tokens, head.unknown)
        self._budget.brought(tokens)
        self._gained = self._gained * _DECAY + tokens
        self._unknown = self._unknown * _DECAY + head.unknown

    def _draft(self, due: Sequence[TreeDrafter], token_s: float, in_any_case: bool) -> None:
        started, before = self._clock(), self._heads.totals.pairs
        drafts = {}
        for drafter in due:
            draft = None if drafter.head is None else HeadDraft(drafter.head, drafter.tree)
            if draft is not None and (self._helps(draft, token_s) or in_any_case):
                drafts[draft] = drafter
        growing = self._heads.begin([*drafts]) if drafts else []
        for draft in growing:
            drafts[draft].had_head = True
        drafted, first_s = len(growing), self._clock() - started
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
            self._first_s.add(first_s / drafted)
            self._draft_s.add(seconds / drafted)

    def _helps(self, draft: HeadDraft, token_s: float) -> bool:
        """Return True if a first row is worth its time beside what the other sources know."""
        unknown = draft.drafter.unknown = 1.0 - draft.tree.known()
        return unknown * self._gained / self._unknown * token_s > self._first_s.seconds

    def _extended(self, drafts: Sequence[HeadDraft], level: int, token_s: float) -> list[HeadDraft]:
        """Read one more token of all drafts, if what their rows bring is worth a forward."""
        grown: list[tuple[HeadDraft, Unread]] = []
        for draft in drafts:
            unread = draft.tree.unread()
            if unread is not None and unread.row == level:
                grown.append((draft, unread))
        if not grown:
            return []
        chances = [unread.value * (1.0 - unread.known) for _, unread in grown]
        cost = self._levels_s.setdefault(len(grown).bit_length(), _Average())
        worth = sum(chances) * self._heads.gains[level] * token_s
        if worth <= cost.seconds or (level and not cost.seconds):
            return []
        started = self._clock()
        self._heads.extend(grown)
        cost.add(self._clock() - started)
        return [draft for draft, _ in grown]
