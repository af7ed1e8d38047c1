"""What the torch executor does between two steps: beams, scores, costs, and texts to draft from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from typing import TypeVar

from trtla.errors import TrtlaError, UsageError
from trtla.runtime.auto.probe import measure_costs
from trtla.runtime.auto.steps import AdaptiveSteps
from trtla.runtime.costs import CostPlan, CostTable
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.beams import CachedBeams, beam_search
from trtla.runtime.loop.scores import text_log_probs
from trtla.runtime.loop.step import StepLoop
from trtla.runtime.models.forward import Model, StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.ranks.opening import Ranks
from trtla.runtime.request import DrafterFactory, DraftMemory, Hypothesis, Request
from trtla.runtime.stats import DraftTotals
from trtla.settings.sampling import BeamSettings

T = TypeVar("T")

CostSource = Callable[[StepForward, KVCache, ExecutorLimits, int], CostTable | None]
"""Measures what forwards of up to a number of sequences cost, or remembers it. Asked when the first
adaptive request comes, when more are in flight than before, and again where it says None: not now.
For 0 sequences it measures nothing: what is remembered.
"""


class BesideSteps(StepLoop):
    """What needs no request in flight; arguments as in `TorchExecutor`."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        limits: ExecutorLimits,
        draft_totals: DraftTotals,
        drafters: DrafterFactory,
        costs: CostSource,
        most_nodes: int | None,
        ranks: Ranks | None,
    ) -> None:
        super().__init__(model, cache, limits, draft_totals, ranks)
        self._drafters, self._most_nodes = drafters, most_nodes
        self._opened_with = (drafters, most_nodes)
        self._memory = DraftMemory()
        """The one in use."""
        self._cost_source = costs
        self._cost_table: CostTable | None = None
        self._costed = 0
        """Sequences that the table was asked for."""
        self._added: list[tuple[int, ...]] = []
        """Texts that were added: the drafters get them again when they begin anew."""

    def _costs(self, sequences: int) -> CostTable | None:
        """What forwards of up to so many sequences cost, asked for until it is known."""
        if sequences > self._costed:
            place = (self._forward, self._cache, self._limits)
            found = self._cost_source(*place, sequences)
            if found is not None:
                self._cost_table, self._costed = found, sequences
        return self._cost_table

    def warm_up(self) -> None:
        """Take the cache's memory; learn what steps of up to a full batch cost."""
        self._check_open()
        self._cache.claim()
        self._beside(lambda: self._costs(self._limits.max_batch_size))

    def use_memory(self, memory: DraftMemory) -> None:
        """Draft for the requests to come with what this memory holds.

        Raises:
            UsageError: requests are in flight, or the memory was made for another model.
        """
        self._check_open()
        if memory.held is not None and memory.held[0] is not self:
            raise UsageError(
                "this memory of drafts was made for another model, with other token ids",
                "make one for each model: DraftMemory()",
            )
        if any(one.finish_reason is None for one in self._in_flight.sequences.values()):
            raise UsageError(
                "requests are in flight, whose drafts belong to another memory",
                "change it when all have ended",
            )
        self._beside(lambda: self._use(memory))

    def _use(self, memory: DraftMemory) -> None:
        if memory.held is None:
            drafters, nodes = self._opened_with
            if memory.options is not None:
                nodes = memory.options.nodes
            adaptive = AdaptiveSteps(self._costs, nodes)
            memory.held = (self, drafters.fresh(memory.options), adaptive, nodes)
        self._memory.num_texts, self._memory = len(self._added), memory
        _, self._drafters, self._adaptive, self._most_nodes = memory.held
        self._drafters.add_texts(self._added[memory.num_texts :])
        memory.num_texts = len(self._added)

    def beam_search(self, request: Request, settings: BeamSettings) -> list[Hypothesis]:
        """The best hypotheses of a request, beside those in flight; its sampling is not looked at.

        Raises:
            UsageError: the request does not fit.
            TrtlaError: the cache has no room for the beams, or the logits are not finite.
        """
        self._check_new(request, ())
        length = request.sampling.max_output_len
        sizes = (settings.num_beams, length, self._limits.max_num_tokens)
        ids = (request.input_ids, *sizes, request.encoder_ids)

        def search() -> list[Hypothesis]:
            with CachedBeams(self._forward, self._cache, *ids, label=request.label) as target:
                return beam_search(target, settings, length, request.end_ids)

        return self._beside(search)

    def measure_costs(self, plan: CostPlan) -> CostTable:
        """Time forwards of made-up sequences in free blocks, anew.

        Raises:
            TrtlaError: requests in flight own all blocks.
        """
        self._check_open()
        place = (self._forward, self._cache, self._limits)
        table = self._beside(lambda: measure_costs(*place, plan))
        if table is None:
            raise TrtlaError(
                "no block of the K/V cache is free to time forwards in",
                "measure when no request is in flight",
            )
        return table

    def kept_costs(self) -> CostTable | None:
        """The table of adaptive requests, of this executor or of an earlier one."""
        self._check_open()
        return self._cost_table or self._cost_source(self._forward, self._cache, self._limits, 0)

    def add_texts(self, texts: Iterable[Tokens[int]]) -> None:
        """Take token ids of texts to draft from, for all requests that come.

        Raises:
            UsageError: an id is outside the vocabulary.
        """
        self._check_open()
        added = [tuple(text) for text in texts]
        for text in added:
            self._limits.check_ids(text, "a text to draft from")
        before, self._unfinished = self._unfinished, True
        self._added += added
        self._drafters.add_texts(added)
        self._unfinished = before

    def kept_texts(self) -> list[tuple[int, ...]]:
        """The texts that are drafted from now."""
        self._check_open()
        return self._drafters.texts()

    def log_probs(self, request: Request, output_ids: Tokens[int]) -> list[float]:
        """How probable the target finds an output, beside the requests in flight.

        Raises:
            UsageError: prompt and output do not fit.
            TrtlaError: the cache has no room for them, or the logits are not finite.
        """
        self._check_new(request, ())
        self._limits.check_ids(output_ids, request.label)
        ids = (request.input_ids, output_ids)
        sizes = (self._limits.max_num_tokens, request.encoder_ids)
        place = (self._forward, self._cache)
        return self._beside(lambda: text_log_probs(*place, *ids, *sizes, label=request.label))

    def _beside(self, work: Callable[[], T]) -> T:
        """Do something with blocks of its own, between two steps."""
        self._begin()
        try:
            found = work()
        except TrtlaError:  # it has given back what it took
            self._unfinished = False
            raise
        self._unfinished = False
        return found
