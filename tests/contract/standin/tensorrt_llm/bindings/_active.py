"""A request that the executor has taken: its checks, its tokens, its responses.

TensorRT-LLM batch_manager/llmRequest.cpp, executorImpl.cpp, lookaheadAlgorithm.cpp.
"""

from __future__ import annotations

from typing import Any

from .._standin import StandinUndefinedBehaviour
from .._version import at_least
from . import _cpp
from ._cpp import check, throw
from ._engine_files import EngineFacts
from ._engine_model import EngineModel
from ._enums import FinishReason
from ._requests import Request
from ._responses import Response, Result
from ._start import Started, Triple, draft_len, triple_of
from ._tokens import lookahead_step, sampled_step

_FILE = "batch_manager/llmRequest.cpp"
_ALGORITHM = "layers/lookaheadAlgorithm.cpp"


class Active:
    def __init__(self, request_id: int, request: Request) -> None:
        self.id, self.request = request_id, request
        self.prompt: list[int] = request.input_token_ids
        self.output: list[int] = []
        self.max_tokens: int = request.max_tokens
        self.end_id: int = -1 if request.end_id is None else request.end_id
        self.context_position = 0
        self.decoding_iter = 0
        self.finish = FinishReason.NOT_FINISHED
        self._sent = 0
        self._set_up = False

    def validate(self, engine: EngineFacts, limits: Started, gather_logits: bool) -> None:
        """The checks that touch this request alone; lowers max_tokens to what fits.

        Raises:
            RuntimeError: a check of C++ fails.
            StandinUndefinedBehaviour: C++ would go on with nonsense.
        """
        vocab, length = engine.vocab_size_padded, len(self.prompt)
        check(
            -1 <= self.end_id < vocab,
            f"EndId ({self.end_id}) is not within acceptable range [-1, {vocab}).",
            _FILE,
        )
        if length > limits.max_input_len:
            raise throw(
                f"Prompt length ({length}) exceeds maximum input length ({limits.max_input_len}). "
                "Set log level to info and check TRTGptModel logs for how maximum input length is "
                "set",
                _FILE,
            )
        self._fit_into(limits.max_seq_len, engine.max_draft_len)
        self._check_output(engine, limits, gather_logits)
        vocab = engine.pretrained["vocab_size"]
        bad = [token for token in self.prompt if not 0 <= token < vocab]
        if bad:
            raise StandinUndefinedBehaviour(f"token id {bad[0]} in a vocabulary of {vocab}")

    def _fit_into(self, max_seq_len: int, drafts: int) -> None:
        length = len(self.prompt)
        if length + self.max_tokens + drafts <= max_seq_len:
            return
        lowered = max_seq_len - length - drafts
        _cpp.log(
            "WARNING",
            "Prompt length + number of requested output tokens + draft tokens per step "
            f"({length} + {self.max_tokens} + {drafts}) exceeds maximum sequence length "
            f"({max_seq_len}). Number of requested output tokens is changed to ({lowered}).",
        )
        if lowered < 1:
            raise StandinUndefinedBehaviour(f"max_tokens was lowered to {lowered}")
        self.max_tokens = lowered

    def _check_output(self, engine: EngineFacts, limits: Started, gather_logits: bool) -> None:
        output = self.request.output_config
        if self.request.streaming and not limits.no_evict and not limits.chunked:
            check(
                len(self.prompt) + self.max_tokens - 1 <= limits.max_input_len,
                "Request sequence length is potentially greater than max input length. This cannot "
                "be run unless streaming is disabled, context chunking is enabled or the "
                "GUARANTEED_NO_EVICT scheduling policy is used",
                "executor/executorImpl.cpp",
            )
        check(
            not output.return_context_logits or engine.context_logits,
            "Return context logit need to build engine with gather_context_logits",
            "executor/executorImpl.cpp",
        )
        check(
            not output.return_generation_logits or gather_logits,
            "To return generation logits, gather_generation_logits must be enabled in "
            "ExecutorConfig",
            "executor/executorImpl.cpp",
        )

    def triple(self, server: Triple) -> Triple:
        """Its own (W, N, G) or the server's."""
        own = self.request.lookahead_config
        return server if own is None else triple_of(own)

    def set_up(self, limits: Started) -> None:
        """What the decoder does in a request's first step; a throw here ends all requests."""
        server = limits.lookahead
        if self._set_up or server is None:
            return
        self._set_up = True
        check(
            limits.configured,
            "Lookahead decoding config must be provided",
            "batch_manager/createNewDecoderRequests.cpp",
        )
        triple = self.triple(server)
        for name, value, largest in zip("wng", triple, server, strict=True):
            check(
                value <= largest,
                f"lookahead requires setup {name} ({value}) <= max_{name} ({largest})",
                _ALGORITHM,
            )
        if len(self.prompt) < triple[1] - 1:
            raise StandinUndefinedBehaviour(
                f"request {self.id} has a prompt of {len(self.prompt)} tokens and N is "
                f"{triple[1]}: C++ reads {triple[1] - 1} tokens from its end without a check"
            )

    def tokens_of_step(self, server: Triple | None) -> int:
        if self.context_position < len(self.prompt):
            return len(self.prompt) - self.context_position
        if server is None:
            return 1
        return 1 + draft_len(self.triple(server))

    def step(self, model: EngineModel, server: Triple | None) -> None:
        """Decode one iteration: the prompt's first token, or one to N tokens."""
        tokens = self.prompt + self.output
        config = self.request.sampling_config
        min_len = len(self.prompt) + (config.min_tokens or 0)
        if server is None:
            new = [sampled_step(model, tokens, config, self.end_id, min_len)]
        else:
            triple = self.triple(server) if self.output else (1, 1, 0)
            new = lookahead_step(model, tokens, *triple[1:], self.end_id, min_len)
        self.decoding_iter += 1
        for token in new:
            self._commit(token)
            if self.finish != FinishReason.NOT_FINISHED:
                return

    def _commit(self, token: int) -> None:
        """Take a token, unless it ends the request: the end token is dropped."""
        if token == self.end_id:
            self.finish = FinishReason.END_ID
            return
        self.output.append(token)
        if len(self.output) >= self.max_tokens:
            self.finish = FinishReason.LENGTH

    @property
    def average(self) -> float:
        return len(self.output) / self.decoding_iter if self.decoding_iter else 0.0

    def response(self) -> Response | None:
        """The response due now: on new tokens when it streams, and at the end."""
        ended = self.finish != FinishReason.NOT_FINISHED
        streaming, output = self.request.streaming, self.request.output_config
        if not ended and not (streaming and len(self.output) > self._sent):
            return None
        result: Any = Result()
        result.is_final = result.is_sequence_final = ended
        result.finish_reasons = [self.finish]
        result.decoding_iter = self.decoding_iter
        if at_least(1, 1):
            result.avg_decoded_tokens_per_iter = self.average
        result.output_token_ids = [self._tokens_out(streaming, output.exclude_input_from_output)]
        self._sent = len(self.output)
        return Response(self.id, result, self.request.client_id)

    def _tokens_out(self, streaming: bool, exclude_input: bool) -> list[int]:
        if self.finish == FinishReason.CANCELLED:
            return []  # clearGeneratedTokens
        if not streaming:
            return list(self.output) if exclude_input else self.prompt + self.output
        return self.output[self._sent :]
