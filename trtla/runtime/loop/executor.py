"""The torch executor: queues requests, runs them in steps, and reports their outputs.

After an exception, such as an interrupt between any two instructions, nothing is repaired:
`RequestRecord` holds the committed state, and `_recover` rebuilds all else from it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from dataclasses import replace
from typing import Any, TypeVar

from trtla.errors import TrtlaError, UsageError, named
from trtla.runtime.auto.fixed import FIXED_COSTS
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.executor import Executor, RequestRecord
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.beams import CachedBeams, beam_search
from trtla.runtime.loop.drafting import Drafting
from trtla.runtime.loop.scheduler import Scheduler
from trtla.runtime.loop.scores import text_log_probs
from trtla.runtime.loop.step import Step, Stepper
from trtla.runtime.models.forward import Forwarded, Model
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.ranks.opening import Ranks
from trtla.runtime.request import (
    DrafterFactory,
    DraftMemory,
    FinishReason,
    Hypothesis,
    Output,
    Request,
)
from trtla.runtime.sequence import Feed, RequestFailed, Sequence
from trtla.runtime.stats import DraftTotals, ExecutorStats, RequestStats
from trtla.settings.executor import ENGINE_OPTIONS, ExecutorOptions
from trtla.settings.sampling import BeamSettings

T = TypeVar("T")


class TorchExecutor(Executor):
    """An `Executor` on PyTorch, CPU or CUDA.

    Args:
        cache: reserves a sequence's whole need when it is admitted.
        drafters: makes each request's drafter.
        costs: the expected costs of steps, for adaptive requests.
        keep: gets `costs` when the executor is closed, for the next one.
        max_reused_len: longest text whose blocks are kept for those that begin like it; 0: none.
        options: what the model was opened with.
        ahead: begin the next step before outputs are reported, so that a device computes while
            they are read; None: on GPUs.
        ranks: that run the model together; this process is rank 0, and decides for all.
    """

    def __init__(
        self,
        model: Model[Any],
        cache: KVCache,
        limits: ExecutorLimits,
        drafters: DrafterFactory | None = None,
        costs: StepCosts | None = None,
        max_reused_len: int = 0,
        draft_totals: DraftTotals | None = None,
        *,
        options: ExecutorOptions = ENGINE_OPTIONS,
        ahead: bool | None = None,
        ranks: Ranks | None = None,
        keep: Callable[[StepCosts], None] | None = None,
    ) -> None:
        largest = limits.max_text_len + limits.drafter.max_draft_len(limits.lookahead)
        if cache.pool.num_blocks * TOKENS_PER_BLOCK < largest:
            raise TrtlaError(
                f"{cache.pool.num_blocks} cache blocks cannot hold a request of {largest} tokens",
                "rebuild with a smaller --max-seq-len",
            )
        together = "" if ranks is None else ranks.description
        super().__init__(limits, model.description(cache.device) + together)
        self._cache = cache
        self._costs, self._keep = costs or StepCosts(FIXED_COSTS), keep
        self._stepper = Stepper(model, cache, limits, draft_totals or DraftTotals(), ranks)
        self._stats = self._stepper.stats
        self._drafting = Drafting(
            drafters or Drafters(limits), options.draft_options.nodes, self._costs
        )
        self._max_reused_len, self._options = max_reused_len, options
        self._ahead = cache.device.type == "cuda" if ahead is None else ahead
        self.shares_cores = cache.device.type == "cpu"
        self._record: RequestRecord[Sequence] = RequestRecord()
        self._cancelled: deque[int] = deque()
        self._reset()

    def _reset(self) -> None:
        """Create all state anew, without any request."""
        sizes = (self._limits.max_batch_size, self._limits.max_num_tokens)
        blocks = (self._cache.pool, self._max_reused_len)
        self._scheduler = Scheduler(*sizes, *blocks, bounded=self._options.bounded_steps)
        self._deadlines: dict[int, float] = {}
        self._record.new, self._record.taken = [], []
        self._begun: Step | None = None

    def check_ranks(self) -> None:
        if self._stepper.leader is not None:
            self._stepper.leader.check()

    def stats(self) -> ExecutorStats:
        counted = replace(self._stats, **self._record.counts()._asdict())
        try:
            drafting, pool, scheduler = self._drafting, self._cache.pool, self._scheduler
        except AttributeError:  # it is closed, or another thread is closing it
            return counted
        counted.heads = drafting.drafters.heads()
        return replace(
            counted,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_cache_usage=1.0 - pool.num_free / pool.num_blocks,
        )

    def enqueue(self, request: Request) -> None:
        self._check_open()
        self._record.check_id(request)
        lookahead, drafting = self._limits.triple_of(request), self._limits.drafter_of(request)
        stats = RequestStats(lookahead, drafting.name)
        sequence = Sequence(request, lookahead, NoDrafter(), stats=stats, drafting=drafting)
        if request.begun:
            sequence.outputs.append(Output(request.request_id, request.begun, None, stats))
            sequence.rewind()
        self._check_room(sequence)
        if request.sampling.allotted_time_ms is not None:
            sequence.deadline = time.monotonic() + request.sampling.allotted_time_ms / 1000
        before, self._record.unfinished = self._record.unfinished, True
        self._join(sequence)
        self._record.requests[request.request_id] = sequence
        self._record.unfinished = before

    def _join(self, sequence: Sequence) -> None:
        self._drafting.join(sequence)
        if sequence.deadline is not None:
            self._deadlines[sequence.request.request_id] = sequence.deadline
        self._scheduler.add(sequence)

    def _check_room(self, sequence: Sequence) -> None:
        """Refuse drafts that the cache has no room for beside the largest text."""
        capacity = self._cache.pool.num_blocks * TOKENS_PER_BLOCK
        if sequence.max_cached > capacity:
            raise UsageError(
                f"{sequence.request.label} needs cache for {sequence.max_cached} tokens with its "
                f"drafts, and there is room for {capacity}",
                f"lower its {named('gamma')} or {named('max_output_len')}",
            )

    def cancel(self, request_id: int) -> None:
        self._cancelled.append(request_id)
        if not self._record.unfinished:
            self._record.unfinished = True
            self._end_cancelled()
            self._record.unfinished = False

    def _end_cancelled(self) -> None:
        while self._cancelled:
            self._end(self._cancelled[0], "cancelled")
            self._cancelled.popleft()

    def poll(self, timeout: float | None = None) -> list[Output]:
        self._check_open()
        self._begin()
        while not self._record.new and self._advance() and not self.interrupted():
            pass
        if self._ahead:
            self._begin_step()
        return self._record.report()

    def _begin(self) -> None:
        self._record.begin(self._recover)
        if self._cancelled:
            self._end_cancelled()
        if self._begun is not None:
            self._end_step()

    def _advance(self) -> bool:
        """Run a step or end late requests; False if there is nothing to do."""
        if self._begin_step():
            self._end_step()
            return True
        return bool(self._record.new) or self._end_stuck_one()

    def _begin_step(self) -> bool:
        """End late requests, and begin a step of the others; False if none can run."""
        if self._deadlines:
            self._end_late_ones()
        plan = self._scheduler.next()
        if plan:
            running = self._scheduler.num_running
            self._stats.max_in_flight = max(self._stats.max_in_flight, running)
            try:
                self._begun = self._stepper.launch(plan, self._drafting.adaptive)
            except RequestFailed as failure:
                self._recover(failure)
        return bool(plan)

    def _end_step(self) -> None:
        step = self._begun
        if step is None:
            return
        outputs = self._record.new
        before = len(outputs)
        try:
            seconds = self._stepper.complete(step, outputs)
        except RequestFailed as failure:
            self._recover(failure)
            return
        self._drafting.adaptive.record(seconds)
        self._begun = None
        self._scheduler.stepped(step.feeds, seconds)
        for output in outputs[before:]:
            if output.finish_reason is not None:
                self._finish(self._record.requests[output.request_id])

    def _recover(self, failure: RequestFailed | None = None) -> None:
        """Rebuild all state from what was committed; every text continues unchanged.

        Prompts and outputs so far are cached again, and all outputs are reported again.
        """
        self._record.unfinished = True
        sequences = list(self._record.requests.values())
        for sequence in sequences:
            self._drafting.abandon(sequence)
        self._cache.synchronize()  # a step in flight reads what the next one writes
        self._cache.take_moves()
        self._cache.pool.reset()
        self._drafting.reset()
        self._reset()
        for sequence in sequences:
            sequence.rewind()
        if failure is not None:
            failure.sequence.fail(failure.__cause__)
        for sequence in sequences:
            if sequence.finish_reason is None:
                try:
                    self._join(sequence)
                except Exception as error:
                    sequence.fail(error)
            self._record.new += sequence.outputs

    def _end(self, request_id: int, reason: FinishReason, error: TrtlaError | None = None) -> None:
        """End a request after its committed tokens; unknown ids are ignored."""
        sequence = self._record.requests.get(request_id)
        if sequence is not None and sequence.finish_reason is None:
            self._record.new.append(sequence.end(reason, error))
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self._deadlines.pop(sequence.request.request_id, None)
        self._scheduler.finish(sequence)
        self._drafting.leave(sequence)

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        for request_id in [i for i, end in self._deadlines.items() if end <= now]:
            self._end(request_id, "timed_out")

    def _end_stuck_one(self) -> bool:
        """End a request that would wait indefinitely; False if none does."""
        sequence = self._scheduler.stuck
        if sequence is None:
            return False
        pool, request = self._cache.pool, sequence.request
        error = TrtlaError(
            f"{request.label} needs cache for {sequence.max_cached} tokens, and {pool.num_free} of "
            f"{pool.num_blocks} blocks are free although nothing runs",
            f"lower its {named('gamma')} or {named('max_output_len')}, or open the model again",
        )
        self._end(request.request_id, "failed", error)
        return True

    def use_memory(self, memory: DraftMemory) -> None:
        self._check_open()
        self._drafting.check_memory(memory)
        if any(sequence.finish_reason is None for sequence in self._record.requests.values()):
            raise UsageError(
                "requests are in flight, whose drafts belong to another memory",
                "change it when all have ended",
            )
        self._between_steps(lambda: self._drafting.use(memory))

    def add_texts(self, texts: Iterable[Tokens[int]]) -> None:
        self._check_open()
        added = [tuple(text) for text in texts]
        for text in added:
            self._limits.check_ids(text, "a text to draft from")
        before, self._record.unfinished = self._record.unfinished, True
        self._drafting.add_texts(added)
        self._record.unfinished = before

    def kept_texts(self) -> list[tuple[int, ...]]:
        self._check_open()
        return self._drafting.drafters.texts()

    def step_seconds(self, tokens: int, sequences: int) -> float:
        return self._costs.seconds(tokens, sequences)

    def beam_search(self, request: Request, settings: BeamSettings) -> list[Hypothesis]:
        self._check_open()
        model = (self._forward, self._cache)
        sizes = (settings.num_beams, self._limits.max_num_tokens)

        def search() -> list[Hypothesis]:
            with CachedBeams(*model, request, *sizes) as target:
                length = request.sampling.max_output_len
                return beam_search(target, settings, length, request.end_ids)

        return self._between_steps(search)

    def log_probs(self, request: Request, output_ids: Tokens[int]) -> list[float]:
        self._check_open()
        self._limits.check_ids(output_ids, request.label)
        target, most = (self._forward, self._cache), self._limits.max_num_tokens
        return self._between_steps(lambda: text_log_probs(*target, request, output_ids, most))

    def _forward(self, feeds: Tokens[Feed]) -> Forwarded:
        """Run a forward, unless the work that it is for was interrupted."""
        if self.interrupted():
            raise TrtlaError("it was interrupted", "ask again")
        return self._stepper.forward(feeds)

    def _between_steps(self, work: Callable[[], T]) -> T:
        """Do work with blocks of its own, while requests are in flight."""
        self._begin()
        try:
            result = work()
        except TrtlaError:  # the work has released its blocks
            self._record.unfinished = False
            raise
        self._record.unfinished = False
        return result

    def _release(self) -> None:
        if self._keep is not None:
            self._keep(self._costs)
        self._record.forget(self._record.requests)
        self._cache.synchronize()
        self._begun = None
        if self._stepper.leader is not None:
            self._stepper.leader.close()
        del self._cache, self._stepper, self._drafting, self._scheduler
