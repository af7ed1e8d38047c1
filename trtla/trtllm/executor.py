"""TensorRT-LLM's C++ executor as an `Executor`, for releases 0.20 to 1.2.

Built on `tensorrt_llm.bindings.executor` alone. Conditions that the C++ side only detects in a
decoder step are checked here before a request is enqueued: an oversized lookahead configuration
ends every active request there (lookaheadDecodingLayer.cpp, executorImpl.cpp).

Requests always stream, so that end ids, stop strings and limits are decided by the same function as
in the torch executor. The C++ executor gets one end id; texts that end otherwise are cut off and
cancelled here. After an interrupt the state is rebuilt from each request's record.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from typing import Any

from trtla.errors import TrtlaError, first_line, named, sentence
from trtla.runtime.executor import Executor, RequestRecord
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import FinishReason, Output, Request, committed_prefix
from trtla.runtime.stats import ExecutorStats, RequestStats
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import SamplingParams

_WAIT = timedelta(milliseconds=100)
"""Longest time inside the library per call: Ctrl-C is only handled between calls."""
_ALL_ENDED = "Encountered an error in forward"


class TrtllmAnswer:
    """A request in flight: its recorded outputs, and the interpretation of its responses.

    `theirs` is its id in the C++ executor, `end_id` the end token that C++ was given.
    """

    def __init__(
        self, request: Request, theirs: int, lookahead: LookaheadConfig, end_id: int | None
    ) -> None:
        self.request, self.theirs, self._end_id = request, theirs, end_id
        allotted = request.sampling.allotted_time_ms
        self.deadline = math.inf if allotted is None else time.monotonic() + allotted / 1000
        """Checked here: C++ would not count the time in its queue (llmRequest.h)."""
        self.record: list[tuple[Output, Any]] = []
        """Outputs, each with its response; None: the request was ended here. An output is committed
        by its one `append`: tokens and counters can be rebuilt from the record."""
        self.output_ids: list[int] = []
        self.stats = RequestStats(lookahead, fed=None, drafted=None)
        self._was_interrupted = False

    @property
    def has_ended(self) -> bool:
        return bool(self.record) and self.record[-1][0].finish_reason is not None

    @property
    def is_cut(self) -> bool:
        """True if it has ended here and not in C++."""
        if not self.has_ended:
            return False
        response = self.record[-1][1]
        return response is None or not (response.has_error() or response.result.is_final)

    def read(self, response: Any) -> Output:
        """Interpret a response without changing anything. The output may end before it ends in C++.

        An exception of the request's own stop check ends it as `failed`.
        """
        if response.has_error():
            return self.ending("failed", _failure(self.request, response.error_msg))
        try:
            return self._output(response.result)
        except Exception as cause:
            hint = "other requests continue; decode this one without stop strings"
            error = TrtlaError(f"{self.request.label} failed: {sentence(cause)}", hint)
            error.__cause__ = cause
            return self.ending("failed", error)

    def _output(self, result: Any) -> Output:
        ended = _finish_reason(result)
        tokens = list(result.output_token_ids[0])
        if ended == "end_id" and self._end_id is not None and tokens[-1:] != [self._end_id]:
            tokens.append(self._end_id)  # C++ drops the end token, our outputs include it
        start = len(self.output_ids)
        count, reason = committed_prefix(self.request, self.output_ids, tokens)
        reason, error = reason or ended, None
        if reason == "length" and start + count < self.request.sampling.max_output_len:
            reason, error = "failed", self._shortened(start + count)
        output = (self.request.request_id, tuple(tokens[:count]), reason, self.stats, (), error)
        # Iterations whose tokens were cut off must not turn earlier tokens into drawn ones.
        accepted = max(0, start + count - result.decoding_iter - self.stats.accepted)
        return Output(*output, start=start, accepted=accepted if count else 0)

    def ending(self, reason: FinishReason, error: TrtlaError | None = None) -> Output:
        last = self.record[-1][0] if self.record else None
        start = last.start + len(last.new_tokens) if last else 0
        return Output(self.request.request_id, (), reason, self.stats, error=error, start=start)

    def commit(self, output: Output, response: Any) -> None:
        self.record.append((output, response))
        self._count(output, response)

    def _count(self, output: Output, response: Any) -> None:
        """Update the counters; `decoding_iter` includes the prefill, as in TensorRT-LLM's
        average."""
        if output.new_tokens:
            self.output_ids += output.new_tokens
            self.stats.step_lengths.append(len(output.new_tokens))
            self.stats.steps = response.result.decoding_iter - 1
            self.stats.accepted += output.accepted

    def rewind(self) -> None:
        self._was_interrupted = True
        self.output_ids = []
        self.stats.step_lengths.clear()
        self.stats.steps = self.stats.accepted = 0
        for output, response in self.record:
            self._count(output, response)

    def _shortened(self, count: int) -> TrtlaError:
        """Return the error on releases before 1.0; later ones fail when they start."""
        label, length = self.request.label, self.request.sampling.max_output_len
        if self._was_interrupted:
            text = f"{label} has {count} of {length} tokens, and was interrupted meanwhile"
            return TrtlaError(f"{text}: the others may be lost", "ask again")
        return TrtlaError(
            f"{label} was ended by TensorRT-LLM after {count} of {length} tokens: its K/V "
            "cache has no room for max_seq_len",
            f"free GPU memory, raise {named('kv_cache_free_gpu_memory_fraction')}, or rebuild "
            "with a smaller "
            "--max-seq-len",
        )


class TrtllmExecutor(Executor):
    """An `Executor` on TensorRT-LLM.

    `bindings` is the module `tensorrt_llm.bindings.executor`, `executor` its `Executor`, opened; it
    is destroyed when this object is closed.
    """

    def __init__(
        self, bindings: Any, executor: Any, limits: ExecutorLimits, description: str
    ) -> None:
        super().__init__(limits, description, is_leader=bool(executor.can_enqueue_requests()))
        self._stats = ExecutorStats(fed=None, drafted=None, forward_s=None)
        self._record: RequestRecord[TrtllmAnswer] = RequestRecord()
        self._bindings, self._executor = bindings, executor
        self._running: dict[int, TrtllmAnswer] = {}
        """Requests that have not ended, by the C++ executor's ids."""
        self._arrived: deque[Any] = deque()
        """Responses that are not recorded yet; they survive exceptions like the records."""

    def stats(self) -> ExecutorStats:
        """Return counters since the executor was opened; TensorRT-LLM counts steps."""
        if not self._closed:
            self._read_iterations()
        return replace(self._stats, **self._record.counts()._asdict())

    def enqueue(self, request: Request) -> None:
        self._check_open()
        self._record.check_id(request)
        lookahead = effective_lookahead(request, self._limits.lookahead)
        # Chat models list the token that ends a turn after the one that ends a text. C++ takes one;
        # the others are detected in its stream.
        end_id = max((i for i in request.end_ids if i < self._limits.vocab_size), default=None)
        try:
            theirs = self._executor.enqueue_request(self._translate(request, lookahead, end_id))
        except RuntimeError as error:
            raise TrtlaError(
                f"{request.label} was refused by TensorRT-LLM: {first_line(error)}",
                "correct the request; the message is TensorRT-LLM's own",
            ) from error
        answer = TrtllmAnswer(request, theirs, lookahead, end_id)
        self._record.requests[request.request_id] = answer
        self._running[theirs] = answer

    def _translate(self, request: Request, lookahead: LookaheadConfig, end_id: int | None) -> Any:
        """Translate to the library's types; these names exist in all releases from 0.20 to 1.2."""
        arguments: dict[str, Any] = {
            "streaming": True,
            "sampling_config": self._sampling_config(request.sampling),
            "output_config": self._bindings.OutputConfig(exclude_input_from_output=True),
        }
        if end_id is not None:
            arguments["end_id"] = end_id
        if has_salt(self._bindings):
            # Requests with the same salt share blocks: a private one has its own salt.
            salt = 2**63 + secrets.randbits(63) if request.private else -request.space
            arguments |= {"cache_salt_id": salt} if salt else {}
        if lookahead != self._limits.lookahead and self._limits.lookahead.max_draft_len:
            triple = self._bindings.LookaheadDecodingConfig(*lookahead.as_tuple())
            arguments["lookahead_config"] = triple
        length = request.sampling.max_output_len
        return self._bindings.Request(list(request.input_ids), length, **arguments)

    def _sampling_config(self, sampling: SamplingParams) -> Any:
        """Translate sampling: unset values mean temperature 1, top_k 0 and top_p 0, which is
        argmax."""
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
        """Wait for new outputs, at most `timeout` seconds; empty if none is in flight or due.

        After a `poll` that raised, the next one reports all outputs of requests in flight again.
        """
        self._check_open()
        self._record.begin(self._recover)
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._running and not self._record.new and not self.interrupted():
            self._await()
            self._take()
            self._end_late_ones()
            if deadline is not None and time.monotonic() >= deadline:
                break
        return self._record.report()

    def _recover(self) -> None:
        answers = self._record.requests.values()
        for answer in answers:
            answer.rewind()
            if answer.is_cut:  # the cancellation may have been lost
                self._executor.cancel_request(answer.theirs)
        self._running = {a.theirs: a for a in answers if not a.has_ended}
        self._record.taken = []
        self._record.new = [output for a in answers for output, _ in a.record]

    def _await(self) -> None:
        """Wait for responses and store them on arrival.

        The library returns each of them once. No interpreter instruction lies between that return
        and their storage, so that an interrupt, which the interpreter raises between instructions,
        loses none.
        """
        if not self._arrived:
            wait = partial(self._executor.await_responses, timeout=self._patience())
            self._arrived.extend(chain.from_iterable(islice(iter(wait, None), 1)))

    def _patience(self) -> timedelta:
        """Return the time to wait: at most until the next request is late."""
        left = min(answer.deadline for answer in self._running.values()) - time.monotonic()
        return _WAIT if left > _WAIT.total_seconds() else timedelta(seconds=max(left, 0.0))

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        for answer in [a for a in self._running.values() if a.deadline <= now]:
            self._add(answer, answer.ending("timed_out"))

    def _take(self) -> None:
        """Record arrived responses; each is dropped once its output is recorded."""
        self._read_iterations()
        while self._arrived:
            response = self._arrived[0]
            answer = self._running.get(response.request_id)
            # None: already ended here, cancelled or cut at a stop string
            if answer is not None and not (answer.record and answer.record[-1][1] is response):
                self._add(answer, answer.read(response), response)
            self._arrived.popleft()

    def _add(self, answer: TrtllmAnswer, output: Output, response: Any = None) -> None:
        if not output.new_tokens and output.finish_reason is None:
            return
        answer.commit(output, response)
        self._record.new.append(output)
        if output.finish_reason is not None:
            self._running.pop(answer.theirs, None)
            if answer.is_cut:
                self._executor.cancel_request(answer.theirs)

    def cancel(self, request_id: int) -> None:
        """End a request; its last output comes with the next `poll`. Unknown ids are ignored."""
        answer = self._record.requests.get(request_id)
        if answer is not None and not answer.has_ended:
            before, self._record.unfinished = self._record.unfinished, True
            self._add(answer, answer.ending("cancelled"))
            self._record.unfinished = before

    def _read_iterations(self) -> None:
        """Drain the iteration statistics; the library keeps only the last 1000.

        One more record, with nothing scheduled, comes whenever the executor becomes idle: it
        updates the running and waiting requests. Latencies are useless: they come a step late, and
        include idle time.
        """
        for iteration in self._executor.get_latest_iteration_stats():
            self._stats.running = iteration.num_active_requests
            self._stats.waiting = iteration.num_queued_requests
            cache = iteration.kv_cache_stats
            if cache is not None and cache.max_num_blocks > 0:
                self._stats.kv_cache_usage = cache.used_num_blocks / cache.max_num_blocks
            if not iteration.inflight_batching_stats.num_scheduled_requests:
                continue
            self._stats.steps += 1
            self._stats.max_in_flight = max(self._stats.max_in_flight, self._stats.running)

    def _release(self) -> None:
        """Destroy the C++ executor; in a serving rank this returns when the leader has closed.

        `shutdown` alone would leave the engine and its K/V cache in GPU memory (executorImpl.cpp).
        """
        executor, self._executor = self._executor, None
        try:
            for theirs in self._running:
                executor.cancel_request(theirs)
        finally:
            self._running, self._arrived = {}, deque()
            self._record.forget(self._record.requests)
            executor.__exit__(None, None, None)


def effective_lookahead(request: Request, default: LookaheadConfig) -> LookaheadConfig:
    """Return the triple of a request: its own or the default, with N cut to a short prompt.

    Set-up copies the last N - 1 prompt tokens without a bounds check (lookaheadAlgorithm.cpp). A
    prompt of L < N - 1 tokens therefore runs with N = L + 1: W and G stay, the triple is still at
    most the default, and a prompt of one token runs with N = 2.
    """
    plain = request.drafter is not None and not request.drafter.uses_lookahead
    triple = AUTOREGRESSIVE if plain else request.lookahead or default
    longest = len(request.input_ids) + 1
    if triple.ngram_size <= longest:
        return triple
    return replace(triple, ngram_size=longest)


def has_salt(bindings: Any) -> bool:
    """Return True if requests can isolate their K/V blocks, from about 1.1 on
    (kvCacheManager.cpp)."""
    return "cache_salt_id" in dir(bindings.Request)


def _finish_reason(result: Any) -> FinishReason | None:
    if not result.is_final:
        return None
    name = result.finish_reasons[0].name.lower() if result.finish_reasons else "not_finished"
    reasons: tuple[FinishReason, ...] = ("end_id", "stop_words", "length")
    return next((reason for reason in reasons if reason == name), "cancelled")


def _failure(request: Request, message: str) -> TrtlaError:
    first = first_line(message)
    hint = "other requests continue; correct this one"
    if first.startswith(_ALL_ENDED):
        hint = "TensorRT-LLM ended all active requests with it; run trtla doctor, report the text"
    return TrtlaError(f"{request.label} failed in TensorRT-LLM: {first}", hint)
