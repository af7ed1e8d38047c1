"""Drafting for an executor's requests: the whole drafts of each named drafter, and the nodes of
candidate trees that pay.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import suppress

from trtla.errors import UsageError
from trtla.runtime.auto.fixed import new_policy
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.draft import Draft, fit
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.request import DrafterFactory, DraftMemory
from trtla.runtime.sequence import Sequence
from trtla.runtime.stats import SourceCounts


class Drafting:
    """The drafters of requests, and the state that they share."""

    def __init__(self, drafters: DrafterFactory, most_nodes: int | None, costs: StepCosts) -> None:
        self.drafters, self._most_nodes = drafters, most_nodes
        self._opened_with = (drafters, most_nodes)
        self._costs = costs
        self._memory = DraftMemory()
        """The memory in use."""
        self._texts: list[tuple[int, ...]] = []
        """Added texts: the drafters get them again after a reset."""
        self.adaptive = AdaptiveSteps(costs, most_nodes)

    def reset(self) -> None:
        self.drafters.reset()
        self.drafters.add_texts(self._texts)
        self.adaptive = AdaptiveSteps(self._costs, self._most_nodes)

    def join(self, sequence: Sequence) -> None:
        """Give a sequence a drafter that knows its text so far."""
        request = sequence.request
        drafter = sequence.drafter = self.drafters(sequence.lookahead, request)
        if isinstance(drafter, TreeDrafter):
            drafter.constraint = sequence.constraint if request.grammar is not None else None
            if drafter.head is not None:
                drafter.head.sequence = sequence
        sequence.recorder = request.watch(drafter, request) if request.watch else None
        if sequence.output_ids:
            sequence.observe((), sequence.output_ids)

    def leave(self, sequence: Sequence) -> None:
        self.adaptive.leave(sequence)
        sequence.drafter.close()

    def abandon(self, sequence: Sequence) -> None:
        """Leave, for a sequence whose drafter may be in any state."""
        with suppress(Exception):
            if sequence.finish_reason is None:
                self.adaptive.leave(sequence)
            sequence.drafter.close()

    def check_memory(self, memory: DraftMemory) -> None:
        if memory.held is not None and memory.held[0] is not self:
            raise UsageError(
                "this memory of drafts was made for another model, with other token ids",
                "make one for each model: DraftMemory()",
            )

    def use(self, memory: DraftMemory) -> None:
        """Draft from this memory from now on; no sequence is in flight."""
        if memory.held is None:
            drafters, nodes = self._opened_with
            if memory.options is not None:
                nodes = memory.options.nodes
            adaptive = AdaptiveSteps(self._costs, nodes)
            memory.held = (self, drafters.fresh(memory.options), adaptive, nodes)
        self._memory.num_texts, self._memory = len(self._texts), memory
        _, self.drafters, self.adaptive, self._most_nodes = memory.held
        self.drafters.add_texts(self._texts[memory.num_texts :])
        memory.num_texts = len(self._texts)

    def add_texts(self, texts: list[tuple[int, ...]]) -> None:
        self._texts += texts
        self.drafters.add_texts(texts)


class AdaptiveSteps:
    """Chooses drafts step by step, and learns from each how long steps take.

    Args:
        most_nodes: feed up to this many nodes of each tree at any cost; None: those that pay.
    """

    def __init__(self, costs: StepCosts, most_nodes: int | None = None) -> None:
        self._policy = new_policy(costs, most_nodes)
        self._adaptive: list[tuple[Sequence, int]] = []
        """Sequences with trees in the step, with their tokens before."""
        self._prompt = self._base = self._fed = 0

    def leave(self, sequence: Sequence) -> None:
        """Add up its sources' counts: a sequence has ended, or gets another drafter.

        Nothing is learnt from a step that it takes part in.
        """
        if any(member is sequence for member, _ in self._adaptive):
            self._adaptive = []
        if isinstance(sequence.drafter, TreeDrafter):
            sources = sequence.stats.sources = dict(sequence.stats.sources or {})
            for name, counts in sequence.drafter.counts().items():
                sources[name] = sources.get(name, SourceCounts()) + counts

    def drafts(self, generation: Seq[Sequence], prompt_tokens: int, room: int) -> list[Draft]:
        """Return the drafts of the next step, in order.

        Args:
            prompt_tokens: fed in the same step.
            room: most tokens of all drafts.
        """
        drafts: list[Draft] = []
        trees: list[tuple[int, TreeDrafter]] = []
        for index, sequence in enumerate(generation):
            drafter = sequence.drafter
            if type(drafter) is TreeDrafter:
                trees.append((index, drafter))
                drafts.append(drafter.base())
            else:
                drafts.append(sequence.propose())
        drafts = fit(drafts, max(0, room))
        self._prompt = prompt_tokens
        self._adaptive = [(generation[i], len(generation[i].output_ids)) for i, _ in trees]
        if not trees:
            return drafts
        for index, tree in trees:
            tree.begin(drafts[index])
        fed = sum([len(draft.tokens) for draft in drafts])
        self._base = prompt_tokens + len(drafts) + fed
        drafters = [tree for _, tree in trees]
        self._policy.plan(drafters, self._base, max(0, room - fed), prompt_tokens)
        for index, _ in trees:
            drafts[index] = generation[index].propose()
        self._fed = prompt_tokens + len(drafts) + sum([len(draft.tokens) for draft in drafts])
        return drafts

    def record(self, seconds: float) -> None:
        """Report the tokens and seconds of the planned step."""
        if not self._adaptive or self._prompt:
            return
        committed = sum([len(s.output_ids) - before for s, before in self._adaptive])
        self._policy.record(self._fed, self._base, len(self._adaptive), committed, seconds)
