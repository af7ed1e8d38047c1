"""The torch executor: plan, draft, forward, verify, commit, for all requests in flight at once.

What an exception leaves behind, be it an interrupt between any two instructions, is not repaired
but made anew: `InFlight` holds what is certain, and `_recover` rebuilds all else from it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from contextlib import suppress
from typing import TypeVar

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.runtime.auto.probe import measure_costs, measured_costs
from trtla.runtime.auto.steps import AdaptiveSteps
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.costs import CostPlan, CostTable
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters.lookahead import LookaheadDrafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.beams import CachedBeams, beam_search
from trtla.runtime.loop.scheduler import Scheduler
from trtla.runtime.loop.scores import text_log_probs
from trtla.runtime.loop.step import StepLoop
from trtla.runtime.models.forward import Model, StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.request import (
    DrafterFactory,
    DraftMemory,
    FinishReason,
    Hypothesis,
    Output,
    Request,
)
from trtla.runtime.sequence import RequestFailed, Sequence
from trtla.runtime.stats import DraftTotals, RequestStats
from trtla.settings.sampling import BeamSettings

T = TypeVar("T")

CostSource = Callable[[StepForward, KVCache, ExecutorLimits, int], CostTable | None]
"""Measures what forwards of up to a number of sequences cost, or remembers it. Asked when the first
adaptive request comes, when more are in flight than before, and again where it says None: not now.
For 0 sequences it measures nothing: what is remembered.
"""


class TorchExecutor(StepLoop):
    """An `Executor` on PyTorch, CPU or CUDA.

    Args:
        model: the target.
        cache: its K/V cache; a sequence's whole need is reserved when it is admitted.
        limits: what requests must fit into.
        drafters: makes each request's drafter; lookahead decoding unless said otherwise.
        costs: what forwards cost, for adaptive requests; measured unless said otherwise.
        max_reused_len: longest text whose blocks are kept for those that begin like it; 0: none.
        draft_totals: where draft models count their steps.
        most_nodes: of an adaptive request's step, fed whatever they cost; None: what pays.

    Raises:
        TrtlaError: the cache cannot hold a single request of the largest size.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        limits: ExecutorLimits,
        drafters: DrafterFactory | None = None,
        costs: CostSource = measured_costs,
        max_reused_len: int = 0,
        draft_totals: DraftTotals | None = None,
        most_nodes: int | None = None,
    ) -> None:
        largest = limits.max_text_len + limits.drafter.max_draft_len(limits.lookahead)
        if cache.pool.num_blocks * TOKENS_PER_BLOCK < largest:
            raise TrtlaError(
                f"{cache.pool.num_blocks} cache blocks cannot hold a request of {largest} tokens",
                "rebuild with a smaller --max-seq-len",
            )
        super().__init__(model, cache, limits, draft_totals or DraftTotals())
        self._drafters = drafters or LookaheadDrafters()
        self._cost_source = costs
        self._cost_table: CostTable | None = None
        self._costed = 0
        """Sequences that the table was asked for."""
        self._max_reused_len, self._most_nodes = max_reused_len, most_nodes
        self._opened_with = (self._drafters, most_nodes)
        self._description = f"torch on {cache.device}, {model.arithmetic}"
        self._cancelled: deque[int] = deque()
        self._added: list[tuple[int, ...]] = []
        """Texts that were added: the drafters get them again when they begin anew."""
        self._reset()

    def _reset(self) -> None:
        """All that can be made anew, without any request."""
        sizes = (self._limits.max_batch_size, self._limits.max_num_tokens)
        self._scheduler = Scheduler(*sizes, self._cache.pool, self._max_reused_len)
        self._adaptive = AdaptiveSteps(self._costs, self._most_nodes)
        self._deadlines: dict[int, float] = {}
        self._new, self._taken = [], []

    def _costs(self, sequences: int) -> CostTable | None:
        """What forwards of up to so many sequences cost, asked for until it is known."""
        if sequences > self._costed:
            place = (self._forward, self._cache, self._limits)
            found = self._cost_source(*place, sequences)
            if found is not None:
                self._cost_table, self._costed = found, sequences
        return self._cost_table

    @property
    def description(self) -> str:
        """`torch`, the device and the arithmetic."""
        return self._description

    @property
    def is_leader(self) -> bool:
        """Always: one process runs the model."""
        return True

    def submit(self, request: Request) -> None:
        """Queue a request; raises `UsageError` when it does not fit or its id is in use."""
        self._check_submitted(request)
        lookahead, drafting = self._limits.triple_of(request), self._limits.drafter_of(request)
        sequence = Sequence(
            request,
            lookahead,
            NoDrafter(),
            stats=RequestStats(lookahead, drafting.name),
            drafting=drafting,
        )
        self._check_room(sequence)
        if request.sampling.allotted_time_ms is not None:
            sequence.deadline = time.monotonic() + request.sampling.allotted_time_ms / 1000
        before, self._unfinished = self._unfinished, True
        self._join(sequence)
        self._in_flight.sequences[request.request_id] = sequence
        self._unfinished = before

    def use_memory(self, memory: DraftMemory) -> None:
        """Draft for the requests to come with what this memory holds."""
        self._check_open()
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
            drafters = drafters.fresh(memory.options)
            drafters.add_texts(self._added)
            memory.held = (drafters, adaptive, nodes)
        self._drafters, self._adaptive, self._most_nodes = memory.held

    def _join(self, sequence: Sequence) -> None:
        """Queue a sequence with a drafter that knows its text so far."""
        request, output_ids = sequence.request, sequence.output_ids
        drafter = self._drafters(sequence.lookahead, request)
        if request.watch:
            drafter = request.watch(drafter, request)
        sequence.drafter = drafter
        if request.adaptive:
            self._adaptive.join(sequence)
        if output_ids:
            drafter.observe((), output_ids)
        if sequence.deadline is not None:
            self._deadlines[request.request_id] = sequence.deadline
        self._scheduler.add(sequence)

    def _check_room(self, sequence: Sequence) -> None:
        """The cache holds the largest text with the executor's own drafts; others may be larger."""
        capacity = self._cache.pool.num_blocks * TOKENS_PER_BLOCK
        if sequence.max_cached > capacity:
            raise UsageError(
                f"{sequence.request.label} needs cache for {sequence.max_cached} tokens with its "
                f"drafts, and there is room for {capacity}",
                "lower its --gamma or --max-output-len",
            )

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

    def cancel(self, request_id: int) -> None:
        """End a request; its last output comes with the next `poll`. Unknown ids are ignored."""
        self._cancelled.append(request_id)
        if not self._unfinished:
            self._unfinished = True
            self._end_cancelled()
            self._unfinished = False

    def _end_cancelled(self) -> None:
        while self._cancelled:
            self._end(self._cancelled[0], "cancelled")
            self._cancelled.popleft()

    def poll(self, timeout: float | None = None) -> list[Output]:
        """Step until there is something to report; `timeout` is for executors that wait.

        An exception that is one request's own fault ends it as `failed`; any other is raised. The
        next `poll` then goes on with all requests from what was committed.
        """
        self._check_open()
        self._begin()
        while not self._new and self._advance():
            pass
        return self._report()

    def _advance(self) -> bool:
        """One step, or the end of requests that are late; False where there is nothing to do."""
        self._end_late_ones()
        if self._new:
            return True
        plan = self._scheduler.next()
        if not plan:
            return self._end_stuck_one()
        running = self._scheduler.num_running
        self._stats.max_in_flight = max(self._stats.max_in_flight, running)
        try:
            self._step(plan)
        except RequestFailed as failure:
            self._recover(failure)
            return True
        for sequence in plan.sequences:
            if sequence.finish_reason is not None:
                self._finish(sequence)
        return True

    def _begin(self) -> None:
        super()._begin()
        self._end_cancelled()

    def _recover(self, failure: RequestFailed | None = None) -> None:
        """Make all anew from what was committed; every text goes on as if nothing had happened.

        Prompts and outputs so far are read into the cache again, and all outputs reported again.
        """
        self._unfinished = True
        sequences = list(self._in_flight.sequences.values())
        for sequence in sequences:
            with suppress(Exception):
                sequence.drafter.close()
        self._cache.pool.reset()
        self._drafters.reset()
        self._drafters.add_texts(self._added)
        self._reset()
        for sequence in sequences:
            sequence.rewind()
        if failure is not None:
            self._record_failure(failure.sequence, failure.__cause__)
        for sequence in sequences:
            if sequence.finish_reason is None:
                self._rejoin(sequence)
            self._new += sequence.outputs

    def _rejoin(self, sequence: Sequence) -> None:
        try:
            self._join(sequence)
        except Exception as error:
            self._record_failure(sequence, error)

    def _record_failure(self, sequence: Sequence, cause: BaseException | None) -> None:
        """End a request that is not in the queue for what it has raised."""
        if sequence.finish_reason is None:
            error = cause if isinstance(cause, TrtlaError) else _failure(sequence.request, cause)
            sequence.end("failed", error)

    def _end(self, request_id: int, reason: FinishReason, error: TrtlaError | None = None) -> None:
        """End a request after what was committed, wherever it is; unknown ones are ignored."""
        sequence = self._in_flight.sequences.get(request_id)
        if sequence is not None and sequence.finish_reason is None:
            self._new.append(sequence.end(reason, error))
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        """Let go of what an ended sequence holds."""
        self._deadlines.pop(sequence.request.request_id, None)
        self._scheduler.finish(sequence)
        self._adaptive.leave(sequence)
        sequence.drafter.close()

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        for request_id in [i for i, end in self._deadlines.items() if end <= now]:
            self._end(request_id, "timed_out")

    def _end_stuck_one(self) -> bool:
        """End a request that would wait for ever; False where none does."""
        sequence = self._scheduler.stuck
        if sequence is None:
            return False
        pool, request = self._cache.pool, sequence.request
        error = TrtlaError(
            f"{request.label} needs cache for {sequence.max_cached} tokens, and {pool.num_free} of "
            f"{pool.num_blocks} blocks are free although nothing runs",
            "lower its --gamma or --max-output-len, or open the model again",
        )
        self._end(request.request_id, "failed", error)
        return True

    def _release(self) -> None:
        super()._release()
        del self._model, self._cache, self._forward, self._drafters, self._opened_with
        del self._scheduler, self._adaptive, self._cost_source


def _failure(request: Request, cause: BaseException | None) -> TrtlaError:
    error = TrtlaError(
        f"{request.label} failed: {sentence(cause) if cause else 'its drafter raised'}",
        "the other requests go on; decode this one with --drafter none and without stop strings",
    )
    error.__cause__ = cause
    return error
