"""Adaptive sequences in the step loop: what of their trees is fed, and what is learnt from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtla.runtime.auto.policy import TreePolicy
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import NO_DRAFT, Draft, fit
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.sequence import Sequence as Sequence_
from trtla.runtime.stats import SourceCounts

_ASK_EVERY = 32  # steps, while costs cannot be measured


class AdaptiveSteps:
    """What of every draft is fed: all of it for fixed sequences, what pays for adaptive ones.

    Args:
        costs: (sequences) -> what forwards of up to so many cost; None: it cannot be measured now.
        most_nodes: feed up to so many nodes of each tree, whatever they cost; None: what pays.
    """

    def __init__(
        self, costs: Callable[[int], CostTable | None], most_nodes: int | None = None
    ) -> None:
        self._costs, self._most_nodes = costs, most_nodes
        self._most = 1
        """Sequences that costs were asked for."""
        self._policy: TreePolicy | None = None
        self._steps = 0
        self._asked: int | None = None
        """The step in which costs were last asked for."""
        self._adaptive: list[tuple[Sequence_, int]] = []
        """Adaptive sequences of the step, with their tokens before."""
        self._prompt = self._base = self._fed = 0

    def join(self, sequence: Sequence_, *, may_measure: bool = True) -> None:
        """Take a sequence in; what steps cost is known from the first adaptive one on.

        Args:
            may_measure: False while a step computes, whose logits a measurement would overwrite.
        """
        if may_measure and self._policy is None and sequence.drafter.tree is not None:
            self._begin()

    def _begin(self) -> None:
        self._asked = self._steps
        table = self._costs(self._most)
        if table is not None:
            self._policy = TreePolicy(table, self._most_nodes)

    def _ask_for(self, sequences: int) -> None:
        """More are adaptive than ever before: what steps of so many cost is asked for, once."""
        self._most = sequences
        table = self._costs(sequences)
        if table is not None and self._policy is not None:
            self._policy.use(table)

    def leave(self, sequence: Sequence_) -> None:
        """A sequence has ended, or gets another drafter: note what its sources did.

        A step that it takes part in teaches nothing.
        """
        if any(one is sequence for one, _ in self._adaptive):
            self._adaptive = []
        tree = _tree(sequence)
        if tree is not None:
            sources = sequence.stats.sources = dict(sequence.stats.sources or {})
            for name, own in tree.counts().items():
                sources[name] = sources.get(name, SourceCounts()) + own

    def drafts(self, generation: Sequence[Sequence_], prompt_tokens: int, room: int) -> list[Draft]:
        """The drafts of the next step, in order.

        Args:
            prompt_tokens: are fed beside them.
            room: most tokens that all drafts may feed.
        """
        pairs = [(sequence, _tree(sequence)) for sequence in generation]
        drafts = fit([NO_DRAFT if tree else s.propose() for s, tree in pairs], max(0, room))
        adaptive = [tree for _, tree in pairs if tree]
        self._adaptive = [(s, len(s.output_ids)) for s, tree in pairs if tree]
        self._prompt = prompt_tokens
        self._fed = self._base = prompt_tokens + sum(draft.size for draft in drafts)
        if not adaptive:
            return drafts
        if self._policy is None:
            self._steps += 1
            if self._asked is None or self._steps >= self._asked + _ASK_EVERY:
                self._begin()
        if self._policy is None:
            return drafts
        if len(adaptive) > self._most:
            self._ask_for(len(adaptive))
        left = room - sum(len(draft.tokens) for draft in drafts)
        self._policy.plan(adaptive, self._base, max(0, left), prompt_tokens)
        drafts = [
            s.propose() if tree else draft for (s, tree), draft in zip(pairs, drafts, strict=True)
        ]
        self._fed = prompt_tokens + sum(draft.size for draft in drafts)
        return drafts

    def record(self, seconds: float) -> None:
        """Report what the planned step committed and took."""
        if not self._adaptive or self._policy is None or self._prompt:
            return
        committed = sum(len(s.output_ids) - before for s, before in self._adaptive)
        self._policy.record(self._fed, self._base, len(self._adaptive), committed, seconds)


def _tree(sequence: Sequence_) -> TreeDrafter | None:
    tree = sequence.drafter.tree
    return tree if isinstance(tree, TreeDrafter) else None
