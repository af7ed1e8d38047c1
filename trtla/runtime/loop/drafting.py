"""Who drafts for an executor's requests, from which memory, and what it knows of steps' costs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from trtla.errors import UsageError
from trtla.runtime.auto.steps import AdaptiveSteps
from trtla.runtime.costs import CostTable
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.forward import StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.request import DrafterFactory, DraftMemory
from trtla.runtime.sequence import Sequence

CostSource = Callable[[StepForward, KVCache, ExecutorLimits, int], CostTable | None]
"""Measures what forwards of up to a number of sequences cost, or remembers it. Called when the
first adaptive request comes, when more are in flight than before, and again where it says None: not
now. For 0 sequences it measures nothing: what is remembered.
"""


class Drafting:
    """Drafters of requests, and what they share."""

    def __init__(
        self,
        drafters: DrafterFactory,
        most_nodes: int | None,
        ask_costs: Callable[[int], CostTable | None],
    ) -> None:
        self.drafters, self._most_nodes = drafters, most_nodes
        self._opened_with = (drafters, most_nodes)
        self._ask_costs = ask_costs
        self._memory = DraftMemory()
        """The one in use."""
        self._texts: list[tuple[int, ...]] = []
        """Texts that were added: the drafters get them again when they begin anew."""
        self.cost_table: CostTable | None = None
        self._costed = 0
        """Sequences that the table is for."""
        self.adaptive = AdaptiveSteps(self.costs, most_nodes)

    def costs(self, sequences: int) -> CostTable | None:
        """What forwards of up to so many sequences cost, asked for until it is known."""
        if sequences > self._costed:
            found = self._ask_costs(sequences)
            if found is not None:
                self.cost_table, self._costed = found, sequences
        return self.cost_table

    def reset(self) -> None:
        self.drafters.reset()
        self.drafters.add_texts(self._texts)
        self.adaptive = AdaptiveSteps(self.costs, self._most_nodes)

    def join(self, sequence: Sequence, *, may_measure: bool) -> None:
        """Give a sequence a drafter that knows its text so far.

        Args:
            may_measure: False while a step computes, whose logits a measurement would overwrite.
        """
        request = sequence.request
        drafter = sequence.drafter = self.drafters(sequence.lookahead, request)
        sequence.recorder = request.watch(drafter, request) if request.watch else None
        self.adaptive.join(sequence, may_measure=may_measure)
        if sequence.output_ids:
            sequence.observe((), sequence.output_ids)

    def leave(self, sequence: Sequence) -> None:
        self.adaptive.leave(sequence)
        sequence.drafter.close()

    def abandon(self, sequence: Sequence) -> None:
        """The same, where what is left of its drafter may be in any state."""
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
            adaptive = AdaptiveSteps(self.costs, nodes)
            memory.held = (self, drafters.fresh(memory.options), adaptive, nodes)
        self._memory.num_texts, self._memory = len(self._texts), memory
        _, self.drafters, self.adaptive, self._most_nodes = memory.held
        self.drafters.add_texts(self._texts[memory.num_texts :])
        memory.num_texts = len(self._texts)

    def add_texts(self, texts: list[tuple[int, ...]]) -> None:
        self._texts += texts
        self.drafters.add_texts(texts)
