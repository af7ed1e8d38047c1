"""TensorRT-LLM's C++ executor behind the `Executor` protocol, for releases 0.20 to 1.2.

Built on `tensorrt_llm.bindings.executor` alone. Whatever the C++ side would only find out in a
decoder step is checked here before a request is enqueued: an oversized lookahead configuration ends
every active request there (lookaheadDecodingLayer.cpp, executorImpl.cpp).

Requests always stream, so that end ids, stop strings and limits are decided by the same function as
in the torch executor. The C++ executor gets one end id; what else ends a text is cut off and
cancelled here.
"""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

from trtla.errors import TrtlaError, first_line
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.runtime.commit import committed_prefix
from trtla.runtime.executor import (
    ExecutorStats,
    FinishReason,
    Output,
    Request,
    RequestStats,
    SamplingParams,
)
from trtla.runtime.lifecycle import OpenExecutor
from trtla.runtime.limits import ExecutorLimits

_WAIT = timedelta(milliseconds=100)
"""Longest time inside the library at a stretch: Ctrl-C is only seen between the calls."""

_ALL_ENDED = "Encountered an error in forward"


class _Answer:
    """A request in flight: its output so far, as the C++ executor streams it."""

    def __init__(self, request: Request, lookahead: LookaheadConfig, end_id: int | None) -> None:
        self.request, self.end_id = request, end_id
        allotted = request.sampling.allotted_time_ms
        self.deadline = math.inf if allotted is None else time.monotonic() + allotted / 1000
        """C++ would not count the time in its queue (llmRequest.h)."""
        self.output_ids: list[int] = []
        self.stats = RequestStats(lookahead, fed=None, drafted=None)

    def add(self, result: Any) -> Output:
        """Take the result of one iteration; the output may end here before it ends there."""
        ended = _finish_reason(result)
        tokens = list(result.output_token_ids[0])
        if ended == "end_id" and self.end_id is not None and tokens[-1:] != [self.end_id]:
            tokens.append(self.end_id)  # C++ drops the end token, outputs here have it
        count, reason = committed_prefix(self.request, self.output_ids, tokens)
        new_tokens = tuple(tokens[:count])
        start, before = len(self.output_ids), self.stats.accepted
        self.output_ids += new_tokens
        if new_tokens:
            self._count(count, result.decoding_iter)
        reason, error = reason or ended, None
        if reason == "length" and len(self.output_ids) < self.request.sampling.max_output_len:
            reason, error = "failed", _shortened(self.request, len(self.output_ids))
        told = (self.request.request_id, new_tokens, reason, self.stats, (), error)
        return Output(*told, start=start, accepted=self.stats.accepted - before)

    def _count(self, count: int, iterations: int) -> None:
        """`decoding_iter` counts the prompt pass too, as TensorRT-LLM's average does."""
        self.stats.step_lengths.append(count)
        self.stats.steps = iterations - 1
        self.stats.accepted = max(0, len(self.output_ids) - iterations)


class TrtllmExecutor(OpenExecutor):
    """An `Executor` on TensorRT-LLM.

    Args:
        bindings: the module `tensorrt_llm.bindings.executor`.
        executor: its `Executor`, opened; it is destroyed when this object is closed.
        limits: what requests must fit into.
        description: what runs the model, in a few words.
    """

    def __init__(
        self, bindings: Any, executor: Any, limits: ExecutorLimits, description: str
    ) -> None:
        super().__init__(limits)
        self._bindings, self._executor = bindings, executor
        self._description = description
        self._is_leader = bool(executor.can_enqueue_requests())
        self._answers: dict[int, _Answer] = {}
        """The executor's id -> the request in flight."""
        self._ids: dict[int, int] = {}
        """The request's id -> the executor's."""
        self._ended: list[Output] = []
        self._stats = ExecutorStats(fed=None, drafted=None, forward_s=None)

    @property
    def description(self) -> str:
        """The release, the GPU and the engine's type."""
        return self._description

    @property
    def is_leader(self) -> bool:
        """True in the one process of an MPI run that takes requests."""
        return self._is_leader

    def stats(self) -> ExecutorStats:
        """Counters since the executor was opened; passes are counted by TensorRT-LLM."""
        if not self._closed:
            self._read_iterations()
        return self._stats

    def submit(self, request: Request) -> None:
        """Check a request completely, then queue it; raises `UsageError` when it does not fit."""
        self._check_new(request, self._ids)
        lookahead = effective_lookahead(request, self._limits.lookahead)
        end_id = _end_id(request.end_ids, self._limits.vocab_size)
        try:
            theirs = self._executor.enqueue_request(self._translate(request, lookahead, end_id))
        except RuntimeError as error:
            raise TrtlaError(
                f"{request.label} was refused by TensorRT-LLM: {first_line(error)}",
                "correct the request; the message is TensorRT-LLM's own",
            ) from error
        self._ids[request.request_id] = theirs
        self._answers[theirs] = _Answer(request, lookahead, end_id)

    def _translate(self, request: Request, lookahead: LookaheadConfig, end_id: int | None) -> Any:
        """The request in the library's terms; names that all releases from 0.20 to 1.2 have."""
        given: dict[str, Any] = {
            "streaming": True,
            "sampling_config": self._sampling_config(request.sampling),
            "output_config": self._bindings.OutputConfig(exclude_input_from_output=True),
        }
        if end_id is not None:
            given["end_id"] = end_id
        if lookahead != self._limits.lookahead and self._limits.lookahead.max_draft_len:
            given["lookahead_config"] = lookahead_config(self._bindings, lookahead)
        length = request.sampling.max_output_len
        return self._bindings.Request(list(request.input_ids), length, **given)

    def _sampling_config(self, sampling: SamplingParams) -> Any:
        """Not set means temperature 1, top_k 0, top_p 0 there, and the last two mean argmax."""
        if sampling.greedy:
            return self._bindings.SamplingConfig(1, top_k=1)
        return self._bindings.SamplingConfig(
            1,
            temperature=sampling.temperature,
            top_k=sampling.top_k or None,
            top_p=sampling.top_p,
            seed=sampling.seed,
        )

    def poll(self, timeout: float | None = None) -> list[Output]:
        """Wait for new outputs, at most `timeout` seconds; empty when none is in flight or due."""
        self._check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._answers and not self._ended:
            self._take(self._executor.await_responses(timeout=self._patience()))
            self._end_late_ones()
            if deadline is not None and time.monotonic() >= deadline:
                break
        outputs, self._ended = self._ended, []
        return outputs

    def _patience(self) -> timedelta:
        """How long to wait: until the next request is late, at most."""
        left = min(answer.deadline for answer in self._answers.values()) - time.monotonic()
        return _WAIT if left > _WAIT.total_seconds() else timedelta(seconds=max(left, 0.0))

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        late = [theirs for theirs, answer in self._answers.items() if answer.deadline <= now]
        for theirs in late:
            self._end(theirs, "timed_out")

    def _take(self, responses: list[Any]) -> None:
        self._read_iterations()
        for response in responses:
            answer = self._answers.get(response.request_id)
            if answer is None:  # ended here already: cancelled, or cut at a stop string
                continue
            if response.has_error():
                self._fail(response.request_id, answer, response.error_msg)
            else:
                self._add(response.request_id, answer, response.result)

    def _fail(self, theirs: int, answer: _Answer, message: str) -> None:
        self._forget(theirs)
        error = _failure(answer.request, message)
        request_id, start = answer.request.request_id, len(answer.output_ids)
        self._ended.append(Output(request_id, (), "failed", answer.stats, error=error, start=start))

    def _add(self, theirs: int, answer: _Answer, result: Any) -> None:
        first = not answer.output_ids
        accepted = answer.stats.accepted
        output = answer.add(result)
        self._stats.prompt_tokens += len(answer.request.input_ids) if first else 0
        self._stats.new_tokens += len(output.new_tokens)
        self._stats.accepted += answer.stats.accepted - accepted
        if output.finish_reason is not None:
            self._forget(theirs)
            if not result.is_final:
                self._executor.cancel_request(theirs)
        if output.new_tokens or output.finish_reason is not None:
            self._ended.append(output)

    def cancel(self, request_id: int) -> None:
        """End a request; its last output comes with the next `poll`. Unknown ids are ignored."""
        theirs = self._ids.get(request_id)
        if theirs is not None:
            self._end(theirs, "cancelled")

    def _end(self, theirs: int, reason: FinishReason) -> None:
        self._executor.cancel_request(theirs)
        answer = self._answers[theirs]
        self._forget(theirs)
        start = len(answer.output_ids)
        self._ended.append(Output(answer.request.request_id, (), reason, answer.stats, start=start))

    def resend(self) -> None:
        """Nothing: what a `poll` has returned is not kept."""

    def _forget(self, theirs: int) -> None:
        del self._ids[self._answers.pop(theirs).request.request_id]

    def _read_iterations(self) -> None:
        """Drain the iteration statistics; the library keeps the last 1000 only.

        One record more, with nothing scheduled, comes whenever the executor runs empty. Latencies
        are of no use: they come a pass late, and hold the time that the executor was idle.
        """
        for iteration in self._executor.get_latest_iteration_stats():
            if not iteration.inflight_batching_stats.num_scheduled_requests:
                continue
            self._stats.steps += 1
            running = iteration.num_active_requests
            self._stats.max_in_flight = max(self._stats.max_in_flight, running)

    def _release(self) -> None:
        """Destroy the C++ executor; in a serving rank this returns when the leader has closed.

        `shutdown` alone would leave the engine and its K/V cache in GPU memory (executorImpl.cpp).
        """
        executor, self._executor = self._executor, None
        try:
            for theirs in self._answers:
                executor.cancel_request(theirs)
        finally:
            self._answers.clear()
            self._ids.clear()
            executor.__exit__(None, None, None)


def effective_lookahead(request: Request, server: LookaheadConfig) -> LookaheadConfig:
    """The triple that a request runs with: its own or the server's, its N cut to a short prompt.

    Set-up copies the last N - 1 prompt tokens without a bounds check (lookaheadAlgorithm.cpp). A
    prompt of L < N - 1 tokens therefore runs with N = L + 1: W and G stay, the triple is still at
    most the server's, and a prompt of one token runs with N = 2.
    """
    plain = request.drafter is not None and not request.drafter.uses_lookahead
    triple = AUTOREGRESSIVE if plain else request.lookahead or server
    longest = len(request.input_ids) + 1
    if triple.ngram_size <= longest:
        return triple
    return LookaheadConfig(triple.window_size, longest, triple.verification_set_size)


def _end_id(end_ids: frozenset[int], vocab_size: int) -> int | None:
    """The one end id the C++ executor is given; the others are found in what it streams.

    The largest: chat models list the token that ends a turn after the one that ends a text.
    """
    return max((i for i in end_ids if i < vocab_size), default=None)


def _finish_reason(result: Any) -> FinishReason | None:
    if not result.is_final:
        return None
    name = result.finish_reasons[0].name.lower() if result.finish_reasons else "not_finished"
    reasons: tuple[FinishReason, ...] = ("end_id", "stop_words", "length")
    return next((reason for reason in reasons if reason == name), "cancelled")


def _failure(request: Request, message: str) -> TrtlaError:
    first = first_line(message)
    hint = "the other requests go on; correct this one"
    if first.startswith(_ALL_ENDED):
        hint = "TensorRT-LLM ended all active requests with it; run trtla doctor, report the text"
    return TrtlaError(f"{request.label} failed in TensorRT-LLM: {first}", hint)


def _shortened(request: Request, count: int) -> TrtlaError:
    """Releases before 1.0 cannot be told to fail at their start instead."""
    return TrtlaError(
        f"{request.label} was ended by TensorRT-LLM after {count} of "
        f"{request.sampling.max_output_len} tokens: its K/V cache has no room for max_seq_len",
        "free GPU memory, raise --kv-cache-free-gpu-memory-fraction, or rebuild with a smaller "
        "--max-seq-len",
    )


def lookahead_config(bindings: Any, triple: LookaheadConfig) -> Any:
    """The triple as the library has it."""
    return bindings.LookaheadDecodingConfig(*triple.as_tuple())
