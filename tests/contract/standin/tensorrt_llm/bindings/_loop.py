"""The executor's loop: take, run, answer. One call is one iteration; TensorRT-LLM executorImpl.cpp.

A throw in the decoder's set-up ends every active request; a failed check of a new request ends that
one alone.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from .._standin import StandinUndefinedBehaviour
from ._active import Active
from ._cpp import log
from ._engine_files import EngineFacts
from ._engine_model import EngineModel
from ._enums import FinishReason
from ._requests import Request
from ._responses import Response
from ._start import Started, draft_len, mask_words
from ._stats import (
    InflightBatchingStats,
    IterationStats,
    KvCacheStats,
)


class Loop:
    """Requests queued and active, and the responses that nobody has fetched."""

    def __init__(
        self,
        engine: EngineFacts,
        limits: Started,
        model: EngineModel,
        config: Any,
        pool_tokens: int,
    ) -> None:
        self._engine, self._limits, self._model = engine, limits, model
        self._pool_tokens = pool_tokens
        self._gather_logits = bool(config.gather_generation_logits)
        self.queued: list[tuple[int, Request]] = []
        self.active: list[Active] = []
        self.cancelled: set[int] = set()
        self.ready: dict[int, list[Response]] = {}
        self.iteration_stats: deque[Any] = deque(maxlen=config.iter_stats_max_iterations)
        self._iterations = 0
        self._latency_ms = 0.0
        """Of the pass before, which the next record reports."""
        self._mark = time.perf_counter()
        """When the last pass ended: the clock of the next one runs while it waits for requests."""

    @property
    def idle(self) -> bool:
        return not self.queued and not self.active

    def iterate(self) -> None:
        began = self._mark
        self._end_cancelled()
        finished = self._answer()
        if finished and not self.active:
            self._record(finished, 0, [], 0.0)
        before = len(self.active)
        self._fetch()
        if self.active:
            scheduled = self._run()
            new = len(self.active) - before
            self._record(finished if before else [], new, scheduled, self._latency_ms)
            done = self._answer()
            if done and not self.active:
                self._record(done, 0, [], 0.0)
        self._mark = time.perf_counter()
        self._latency_ms = (self._mark - began) * 1000

    def _end_cancelled(self) -> None:
        for active in self.active:
            if active.id in self.cancelled:
                active.finish = FinishReason.CANCELLED
        self.cancelled -= {active.id for active in self.active}

    def _answer(self) -> list[Active]:
        for active in self.active:
            response = active.response()
            if response is not None:
                self._give(response)
        finished = [a for a in self.active if a.finish != FinishReason.NOT_FINISHED]
        self.active = [a for a in self.active if a.finish == FinishReason.NOT_FINISHED]
        return finished

    def _give(self, response: Response) -> None:
        self.ready.setdefault(response.request_id, []).append(response)

    def _fetch(self) -> None:
        room = self._limits.max_batch_size * self._engine.pp_size - len(self.active)
        taken, self.queued = self.queued[:room], self.queued[room:]
        for request_id, request in taken:
            active = Active(request_id, request)
            try:
                active.validate(self._engine, self._limits, self._gather_logits)
            except RuntimeError as error:
                text = f"Encountered an error when fetching new request: {error}"
                log("ERROR", text)
                self._give(Response(request_id, text, request.client_id))
            else:
                self.active.append(active)

    def _run(self) -> list[Active]:
        """Run what fits into max_num_tokens, generation first; ends all on a throw."""
        server = self._limits.lookahead
        scheduled, budget = [], self._limits.max_num_tokens
        for active in sorted(self.active, key=lambda a: a.context_position < len(a.prompt)):
            tokens = active.tokens_of_step(server)
            if budget < 1 or (tokens > budget and (active.output or not self._limits.chunked)):
                continue
            scheduled.append((active, min(tokens, budget)))
            budget -= min(tokens, budget)
        for active, tokens in scheduled:
            if not active.output:
                active.context_position += tokens
        ready = [a for a, _ in scheduled if a.context_position >= len(a.prompt)]
        self._refuse_undefined(ready, len(scheduled) - len(ready))
        try:
            for active in ready:
                active.set_up(self._limits)
        except RuntimeError as error:
            self._end_all(f"Encountered an error in forwardAsync function: {error}")
            return []
        for active in ready:
            active.step(self._model, server)
        return [active for active, _ in scheduled]

    def _refuse_undefined(self, ready: list[Active], unfinished: int) -> None:
        """Passes that go on with wrong memory in C++ where lookahead drafts."""
        server, engine = self._limits.lookahead, self._engine
        if server is None or not any(active.output for active in ready):
            return
        if engine.pp_size > 1:
            raise StandinUndefinedBehaviour("drafts and masks reach the last pipeline stage only")
        if unfinished:
            raise StandinUndefinedBehaviour("an unfinished chunk beside generating requests")
        if mask_words(draft_len(server)) != mask_words(engine.max_draft_len):
            raise StandinUndefinedBehaviour("the mask has rows of another width than the engine's")

    def _end_all(self, text: str) -> None:
        log("ERROR", text)
        for active in self.active:
            self._give(Response(active.id, text, active.request.client_id))
        self.active = []

    def _record(
        self, finished: list[Active], new: int, scheduled: list[Active], latency_ms: float
    ) -> None:
        context = [active for active in scheduled if active.decoding_iter <= 1]
        averages = [active.average for active in scheduled if active.decoding_iter]
        inflight = InflightBatchingStats(
            num_scheduled_requests=len(scheduled),
            num_context_requests=len(context),
            num_gen_requests=len(scheduled) - len(context),
            num_ctx_tokens=sum(len(active.prompt) for active in context),
            avg_num_decoded_tokens_per_iter=sum(averages) / max(len(averages), 1),
        )
        self.iteration_stats.append(
            IterationStats(
                iter=self._iterations,
                iter_latency_ms=latency_ms,
                num_new_active_requests=new,
                num_active_requests=len(self.active),
                num_queued_requests=len(self.queued),
                num_completed_requests=len(finished),
                max_num_active_requests=self._limits.max_batch_size * self._engine.pp_size,
                kv_cache_stats=self._blocks(),
                inflight_batching_stats=inflight,
            )
        )
        self._iterations += 1

    def _blocks(self) -> KvCacheStats:
        size = self._engine.tokens_per_block
        most = self._pool_tokens // size
        used = sum(-(-(len(a.prompt) + len(a.output)) // size) for a in self.active)
        return KvCacheStats(most, most - used, used, size)
