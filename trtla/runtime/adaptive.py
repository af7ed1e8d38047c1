"""Adaptive sequences in the step loop: what of their drafts is fed, and what `AutoPolicy` learns.

Plain integers; the executor knows this class only where a sequence may be adaptive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from trtla.runtime.auto import AutoPolicy, Guesser
from trtla.runtime.cost_table import CostTable
from trtla.runtime.draft import Draft
from trtla.runtime.sequence import Sequence as Sequence_


@runtime_checkable
class _LimitedDrafter(Guesser, Protocol):
    """A drafter whose draft can be cut to what pays."""


class AdaptiveSteps:
    """What of every draft is fed: all of it for fixed sequences, what pays for adaptive ones."""

    def __init__(self, costs: Callable[[], CostTable]) -> None:
        self._costs = costs
        self._policy: AutoPolicy | None = None
        self._planned: list[tuple[Sequence_, int]] = []
        self._base = 0
        self._fed = 0

    def join(self, sequence: Sequence_) -> None:
        """Make a sequence adaptive; one whose drafter has nothing to choose stays as it is."""
        drafter = sequence.drafter
        if isinstance(drafter, _LimitedDrafter):
            if self._policy is None:
                self._policy = AutoPolicy(self._costs())
            sequence.pilot = self._policy.join(sequence.lookahead, drafter)

    def drafts(self, generation: Sequence[Sequence_], prompt_tokens: int) -> list[Draft]:
        """The drafts of the next step, in order; `prompt_tokens` are fed beside them."""
        adaptive = [s for s in generation if s.pilot is not None]
        self._planned = [(s, len(s.output_ids)) for s in adaptive]
        if not adaptive or self._policy is None:
            return [s.drafter.propose() for s in generation]
        fixed = {id(s): s.drafter.propose() for s in generation if s.pilot is None}
        others = prompt_tokens + sum(draft.size for draft in fixed.values())
        self._policy.plan([s.pilot for s in adaptive if s.pilot is not None], others)
        drafts = [
            fixed[id(s)] if s.pilot is None else s.drafter.propose(s.pilot.limit)
            for s in generation
        ]
        self._base = others + len(adaptive)
        self._fed = prompt_tokens + sum(draft.size for draft in drafts)
        return drafts

    def record(self, seconds: float) -> None:
        """Tell the policy what the planned step brought and took."""
        if not self._planned or self._policy is None:
            return
        committed = 0
        for sequence, before in self._planned:
            tokens = sequence.output_ids[before:]
            committed += len(tokens)
            if sequence.pilot is not None:
                sequence.pilot.committed(tokens)
        count = len(self._planned)
        self._policy.record(self._fed, self._base, count, committed, seconds)
