"""A request in TensorRT-LLM's executor: its recorded outputs, and what its responses mean."""

from __future__ import annotations

import math
import time
from typing import Any

from trtla.errors import TrtlaError, first_line, sentence
from trtla.runtime.request import FinishReason, Output, Request, committed_prefix
from trtla.runtime.stats import RequestStats
from trtla.settings.lookahead import LookaheadConfig

_ALL_ENDED = "Encountered an error in forward"


class TrtllmAnswer:
    """A request in flight: its output so far, as the C++ executor streams it.

    `theirs` is the C++ executor's id of it, `end_id` the end token that that one was given.
    """

    def __init__(
        self, request: Request, theirs: int, lookahead: LookaheadConfig, end_id: int | None
    ) -> None:
        self.request, self.theirs, self._end_id = request, theirs, end_id
        allotted = request.sampling.allotted_time_ms
        self.deadline = math.inf if allotted is None else time.monotonic() + allotted / 1000
        """C++ would not count the time in its queue (llmRequest.h)."""
        self.record: list[tuple[Output, Any]] = []
        """Outputs, each with the response that it comes from; None: it was ended here. An output is
        committed by the one `append` to it: tokens and counters can be rebuilt from the record."""
        self.output_ids: list[int] = []
        self.stats = RequestStats(lookahead, fed=None, drafted=None)
        self._was_interrupted = False

    @property
    def has_ended(self) -> bool:
        """Whether its last output is in the record."""
        return bool(self.record) and self.record[-1][0].finish_reason is not None

    @property
    def is_cut(self) -> bool:
        """Whether it has ended here and not there."""
        if not self.has_ended:
            return False
        response = self.record[-1][1]
        return response is None or not (response.has_error() or response.result.is_final)

    def has_recorded(self, response: Any) -> bool:
        """Whether this is the response of the last output; they come in order."""
        return bool(self.record) and self.record[-1][1] is response

    def read(self, response: Any) -> Output:
        """What a response brings; nothing is changed. The output may end before it ends there.

        What the request's own stop check raises ends it as `failed`.
        """
        if response.has_error():
            return self.ending("failed", _failure(self.request, response.error_msg))
        try:
            return self._output(response.result)
        except Exception as cause:
            return self.ending("failed", _own_failure(self.request, cause))

    def _output(self, result: Any) -> Output:
        ended = _finish_reason(result)
        tokens = list(result.output_token_ids[0])
        if ended == "end_id" and self._end_id is not None and tokens[-1:] != [self._end_id]:
            tokens.append(self._end_id)  # C++ drops the end token, outputs here have it
        start = len(self.output_ids)
        count, reason = committed_prefix(self.request, self.output_ids, tokens)
        reason, error = reason or ended, None
        if reason == "length" and start + count < self.request.sampling.max_output_len:
            reason, error = "failed", self._shortened(start + count)
        output = (self.request.request_id, tuple(tokens[:count]), reason, self.stats, (), error)
        # Iterations whose tokens were cut off make no earlier token a drawn one.
        accepted = max(0, start + count - result.decoding_iter - self.stats.accepted)
        return Output(*output, start=start, accepted=accepted if count else 0)

    def ending(self, reason: FinishReason, error: TrtlaError | None = None) -> Output:
        """The output that ends it after what is in the record."""
        last = self.record[-1][0] if self.record else None
        start = last.start + len(last.new_tokens) if last else 0
        return Output(self.request.request_id, (), reason, self.stats, error=error, start=start)

    def commit(self, output: Output, response: Any) -> None:
        """Record an output and the response that it comes from."""
        self.record.append((output, response))
        self._count(output, response)

    def _count(self, output: Output, response: Any) -> None:
        """`decoding_iter` includes the prefill, as in TensorRT-LLM's own average."""
        if output.new_tokens:
            self.output_ids += output.new_tokens
            self.stats.step_lengths.append(len(output.new_tokens))
            self.stats.steps = response.result.decoding_iter - 1
            self.stats.accepted += output.accepted

    def rewind(self) -> None:
        """Go back to the record after an interrupt, and count again."""
        self._was_interrupted = True
        self.output_ids = []
        self.stats.step_lengths.clear()
        self.stats.steps = self.stats.accepted = 0
        for output, response in self.record:
            self._count(output, response)

    def _shortened(self, count: int) -> TrtlaError:
        """The error on releases before 1.0; later ones fail at their start instead."""
        label, length = self.request.label, self.request.sampling.max_output_len
        if self._was_interrupted:
            text = f"{label} has {count} of {length} tokens, and was interrupted meanwhile"
            return TrtlaError(f"{text}: the others may be lost", "ask again")
        return TrtlaError(
            f"{label} was ended by TensorRT-LLM after {count} of {length} tokens: its K/V "
            "cache has no room for max_seq_len",
            "free GPU memory, raise --kv-cache-free-gpu-memory-fraction, or rebuild with a smaller "
            "--max-seq-len",
        )


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


def _own_failure(request: Request, cause: Exception) -> TrtlaError:
    hint = "the other requests go on; decode this one without stop strings"
    error = TrtlaError(f"{request.label} failed: {sentence(cause)}", hint)
    error.__cause__ = cause
    return error
