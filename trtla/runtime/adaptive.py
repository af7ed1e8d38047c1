"""Adaptive sequences in the step loop: what of their drafts is fed, and what `AutoPolicy` learns.

Plain integers; the executor knows this class only where a sequence may be adaptive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from trtla.runtime.auto import AutoPolicy
from trtla.runtime.cost_table import CostTable
from trtla.runtime.draft import NO_DRAFT, Draft, fit
from trtla.runtime.pilot import NOTHING, Guesser
from trtla.runtime.sequence import Sequence as Sequence_


@runtime_checkable
class _LimitedDrafter(Guesser, Protocol):
    """A drafter whose draft can be cut to what pays."""


class AdaptiveSteps:
    """What of every draft is fed: all of it for fixed sequences, what pays for adaptive ones."""

    def __init__(self, costs: Callable[[], CostTable]) -> None:
        self._costs = costs
        self._policy: AutoPolicy | None = None
        self._adaptive = 0
        """Adaptive sequences in the step."""
        self._drafted: list[tuple[Sequence_, int]] = []
        """Those, with their tokens before, where one of them feeds a draft; else empty."""
        self._base = 0
        self._fed = 0

    def join(self, sequence: Sequence_) -> None:
        """Make a sequence adaptive; one whose drafter has nothing to choose stays as it is."""
        drafter = sequence.drafter
        if isinstance(drafter, _LimitedDrafter):
            if self._policy is None:
                self._policy = AutoPolicy(self._costs())
            sequence.pilot = self._policy.join(sequence.lookahead, drafter, sequence.output_ids)

    def observe(self, sequence: Sequence_, greedy: Sequence[int], tokens: Sequence[int]) -> None:
        """What a forward said goes to the drafter; adaptive ones without a window ask for it."""
        if sequence.pilot is None:
            sequence.drafter.observe(greedy, tokens)
        elif greedy:
            sequence.pilot.learn(greedy)
        elif self._policy is not None and len(sequence.output_ids) == len(tokens):
            self._policy.wake()

    def drafts(self, generation: Sequence[Sequence_], prompt_tokens: int, room: int) -> list[Draft]:
        """The drafts of the next step, in order.

        Args:
            prompt_tokens: are fed beside them.
            room: most tokens that all drafts may feed.
        """
        self._adaptive, self._drafted = 0, []
        limit = None if room > 0 else NOTHING
        if self._policy is None:
            return fit([s.propose(limit) for s in generation], room)
        drafts = [NO_DRAFT if s.pilot else s.propose(limit) for s in generation]
        pilots = [s.pilot for s in generation if s.pilot]
        self._adaptive = len(pilots)
        self._fed = self._base = prompt_tokens + len(drafts)
        if len(pilots) < len(drafts):
            drafts = fit(drafts, room)
            self._fed = self._base = prompt_tokens + sum(draft.size for draft in drafts)
        if not pilots or self._policy.sleeps_on:
            self._policy.skip()
        elif self._policy.plan(pilots, self._base - len(pilots)):
            self._drafted = [(s, len(s.output_ids)) for s in generation if s.pilot]
            for index, sequence in enumerate(generation):
                if sequence.pilot and sequence.pilot.limit is not NOTHING:
                    drafts[index] = sequence.propose(sequence.pilot.limit)
            drafts = fit(drafts, room)
            self._fed = prompt_tokens + sum(draft.size for draft in drafts)
        return drafts

    def record(self, seconds: float) -> None:
        """Tell the policy what the planned step brought and took."""
        if not self._adaptive or self._policy is None:
            return
        committed = self._adaptive
        if self._drafted:
            committed = sum(len(s.output_ids) - before for s, before in self._drafted)
        self._policy.record(self._fed, self._base, self._adaptive, committed, seconds)
