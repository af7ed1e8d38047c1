"""The torch executor: plan, draft, forward, verify, commit, for all requests in flight at once.

What an exception leaves behind, be it an interrupt between any two instructions, is not repaired
but made anew: `InFlight` holds what is certain, and `_recover` rebuilds all else from it.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import replace

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.runtime.auto.probe import measured_costs
from trtla.runtime.auto.steps import AdaptiveSteps
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters.lookahead import LookaheadDrafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.beside import BesideSteps, CostSource
from trtla.runtime.loop.scheduler import Scheduler
from trtla.runtime.loop.step import Step
from trtla.runtime.models.forward import Model
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.models.load import synchronize
from trtla.runtime.ranks.opening import Ranks
from trtla.runtime.request import (
    DrafterFactory,
    FinishReason,
    Output,
    Request,
)
from trtla.runtime.sequence import RequestFailed, Sequence
from trtla.runtime.stats import DraftTotals, ExecutorStats, RequestStats


class TorchExecutor(BesideSteps):
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
        bounded_steps: limit the prompt tokens beside running texts; see `ExecutorOptions`.
        ahead: begin the next step before outputs are reported, so that a device computes while
            they are read; None: where there is one.
        ranks: that run the model together; this process is rank 0, and decides for all.

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
        *,
        bounded_steps: bool = False,
        ahead: bool | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        largest = limits.max_text_len + limits.drafter.max_draft_len(limits.lookahead)
        if cache.pool.num_blocks * TOKENS_PER_BLOCK < largest:
            raise TrtlaError(
                f"{cache.pool.num_blocks} cache blocks cannot hold a request of {largest} tokens",
                "rebuild with a smaller --max-seq-len",
            )
        made = (drafters or LookaheadDrafters(), costs, most_nodes, ranks)
        super().__init__(model, cache, limits, draft_totals or DraftTotals(), *made)
        self._max_reused_len, self._bounded_steps = max_reused_len, bounded_steps
        self._ahead = cache.device.type == "cuda" if ahead is None else ahead
        said = "" if ranks is None else ranks.said
        self._description = f"torch on {cache.device}, {model.arithmetic}{said}"
        self._cancelled: deque[int] = deque()
        self._reset()

    def _reset(self) -> None:
        """All that can be made anew, without any request."""
        sizes = (self._limits.max_batch_size, self._limits.max_num_tokens)
        place = (self._cache.pool, self._max_reused_len)
        self._scheduler = Scheduler(*sizes, *place, bounded=self._bounded_steps)
        self._adaptive = AdaptiveSteps(self._costs, self._most_nodes)
        self._deadlines: dict[int, float] = {}
        self._new, self._taken = [], []
        self._begun: Step | None = None

    @property
    def description(self) -> str:
        """`torch`, the device and the arithmetic."""
        return self._description

    @property
    def is_leader(self) -> bool:
        """Always: of several ranks the others have a `Follower`."""
        return True

    def check_ranks(self) -> None:
        """Raise `RankLost` where another rank is known to have ended."""
        if self._leader is not None:
            self._leader.check()

    def stats(self) -> ExecutorStats:
        """Counters since the executor was opened, and how full it is."""
        counted = super().stats()
        if self._closed:
            return counted
        pool, scheduler = self._cache.pool, self._scheduler
        return replace(
            counted,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_cache_usage=1.0 - pool.num_free / pool.num_blocks,
        )

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
        if request.begun:
            known = Output(request.request_id, request.begun, None, sequence.stats)
            sequence.outputs.append(known)
            sequence.rewind()
        self._check_room(sequence)
        if request.sampling.allotted_time_ms is not None:
            sequence.deadline = time.monotonic() + request.sampling.allotted_time_ms / 1000
        before, self._unfinished = self._unfinished, True
        self._join(sequence)
        self._in_flight.sequences[request.request_id] = sequence
        self._unfinished = before

    def _join(self, sequence: Sequence) -> None:
        """Queue a sequence with a drafter that knows its text so far."""
        request, output_ids = sequence.request, sequence.output_ids
        drafter = self._drafters(sequence.lookahead, request)
        if request.watch:
            drafter = request.watch(drafter, request)
        sequence.drafter = drafter
        if request.adaptive:
            self._adaptive.join(sequence, may_measure=self._begun is None)
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
        if self._ahead:
            self._begin_step()
        return self._report()

    def _advance(self) -> bool:
        """One step, or the end of requests that are late; False where there is nothing to do."""
        if self._begin_step():
            self._end_step()
            return True
        return bool(self._new) or self._end_stuck_one()

    def _begin_step(self) -> bool:
        """End requests that are late, and begin a step of the others; False where none can run."""
        self._end_late_ones()
        plan = self._scheduler.next()
        if plan:
            running = self._scheduler.num_running
            self._stats.max_in_flight = max(self._stats.max_in_flight, running)
            try:
                self._begun = self._launch(plan)
            except RequestFailed as failure:
                self._recover(failure)
        return bool(plan)

    def _end_step(self) -> None:
        """Commit the step that was begun, if any."""
        step = self._begun
        if step is None:
            return
        running = [one for one in step.plan.sequences if one.finish_reason is None]
        try:
            seconds = self._complete(step)
        except RequestFailed as failure:
            self._recover(failure)
            return
        self._begun = None
        self._scheduler.stepped(step.plan, seconds)
        for sequence in running:
            if sequence.finish_reason is not None:
                self._finish(sequence)

    def _begin(self) -> None:
        super()._begin()
        self._end_cancelled()
        self._end_step()

    def _recover(self, failure: RequestFailed | None = None) -> None:
        """Make all anew from what was committed; every text goes on as if nothing had happened.

        Prompts and outputs so far are read into the cache again, and all outputs reported again.
        """
        self._unfinished = True
        sequences = list(self._in_flight.sequences.values())
        for sequence in sequences:
            with suppress(Exception):
                if sequence.finish_reason is None:
                    self._adaptive.leave(sequence)
                sequence.drafter.close()
        synchronize(self._cache.device)  # a step that was begun reads what the next one writes
        self._cache.take_moves()
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
        synchronize(self._cache.device)
        self._begun = None
        if self._leader is not None:
            self._leader.close()
        del self._model, self._cache, self._forward, self._leader, self._drafters
        del self._opened_with
        del self._scheduler, self._adaptive, self._cost_source


def _failure(request: Request, cause: BaseException | None) -> TrtlaError:
    error = TrtlaError(
        f"{request.label} failed: {sentence(cause) if cause else 'its drafter raised'}",
        "the other requests go on; decode this one with --drafter none and without stop strings",
    )
    error.__cause__ = cause
    return error
