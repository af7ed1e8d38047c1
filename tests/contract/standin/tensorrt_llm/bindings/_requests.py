"""Requests and their sampling; TensorRT-LLM nanobind/executor/request.cpp, samplingConfig.cpp.

Nothing is checked about a request's lookahead configuration here, as in the real library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._version import at_least
from . import _native as n
from ._cpp import check
from ._decoding import EagleConfig, LookaheadDecodingConfig
from ._enums import RequestType
from ._native import Arg, Native


class SamplingConfig(Native):
    """How tokens are chosen; everything after the beam width is keyword-only.

    Not set means seed 0, temperature 1, top_k 0 and top_p 0, and the last two mean argmax.
    """

    _positional = 1
    _args = (
        Arg("beam_width", n.int32, 1),
        Arg("top_k", n.optional(n.int32), None),
        Arg("top_p", n.optional(n.float32), None),
        Arg("top_p_min", n.optional(n.float32), None),
        Arg("top_p_reset_ids", n.optional(n.int32), None),
        Arg("top_p_decay", n.optional(n.float32), None),
        Arg("seed", n.optional(n.uint64), None),
        Arg("temperature", n.optional(n.float32), None),
        Arg("min_tokens", n.optional(n.int32), None),
        Arg("beam_search_diversity_rate", n.optional(n.float32), None),
        Arg("repetition_penalty", n.optional(n.float32), None),
        Arg("presence_penalty", n.optional(n.float32), None),
        Arg("frequency_penalty", n.optional(n.float32), None),
        *([Arg("prompt_ignore_length", n.optional(n.int32), None)] if at_least(1, 1) else []),
        Arg("length_penalty", n.optional(n.float32), None),
        Arg("early_stopping", n.optional(n.int32), None),
        Arg("no_repeat_ngram_size", n.optional(n.int32), None),
        Arg("num_return_sequences", n.optional(n.int32), None),
        Arg("min_p", n.optional(n.float32), None),
        Arg("beam_width_array", n.optional(n.vector(n.int32)), None),
    )

    def _validate(self) -> None:
        for name, holds, text in _RANGES:
            value = self._stored[name]
            check(value is None or holds(value), text, "executor/samplingConfig.cpp")


_RANGES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("beam_width", lambda v: v > 0, "beamWidth > 0"),
    ("top_k", lambda v: v >= 0, "topK.value() >= 0"),
    ("top_p", lambda v: 0 < v <= 1, "topP.value() > 0.f && topP.value() <= 1.f"),
    ("top_p_min", lambda v: 0 <= v <= 1, "topPMin.value() >= 0.f && topPMin.value() <= 1.f"),
    ("top_p_reset_ids", lambda v: v >= 0, "topPResetIds.value() >= 0"),
    ("top_p_decay", lambda v: 0 < v <= 1, "topPDecay.value() > 0.f && topPDecay.value() <= 1.f"),
    ("temperature", lambda v: v >= 0, "temperature.value() >= 0.f"),
    ("min_tokens", lambda v: v >= 0, "minTokens.value() >= 0"),
    ("repetition_penalty", lambda v: v > 0, "repetitionPenalty.value() > 0.f"),
    ("no_repeat_ngram_size", lambda v: v >= 0, "noRepeatNgramSize.value() >= 0"),
    ("num_return_sequences", lambda v: v > 0, "numReturnSequences.value() > 0"),
    ("min_p", lambda v: 0 <= v <= 1, "minP.value() >= 0.f && minP.value() <= 1.f"),
)


class OutputConfig(Native):
    _args = (
        Arg("return_log_probs", n.boolean, False),
        Arg("return_context_logits", n.boolean, False),
        Arg("return_generation_logits", n.boolean, False),
        Arg("exclude_input_from_output", n.boolean, False),
        Arg("return_encoder_output", n.boolean, False),
        Arg("return_perf_metrics", n.boolean, False),
        Arg("additional_model_outputs", n.optional(n.vector(n.anything)), None),
    )


_words = n.optional(n.vector(n.vector(n.int32)))
_any = n.optional(n.anything)

_SPECULATION = (
    (
        Arg("external_draft_tokens_config", _any, None),
        Arg("lookahead_config", n.optional(n.of(LookaheadDecodingConfig)), None),
        Arg("eagle_config", n.optional(n.of(EagleConfig)), None),
    )
    if not at_least(1, 3)
    else ()
)


class Request(Native):
    """A prompt and what is asked; all but the first two keyword-only, further attributes allowed.

    `allotted_time_ms` is a `datetime.timedelta` (std::chrono::milliseconds).
    """

    _positional = 2
    _dynamic = True
    _args = (
        Arg("input_token_ids", n.vector(n.int32), read_only=True),
        Arg("max_tokens", n.int32, read_only=True),
        Arg("streaming", n.boolean, False),
        Arg("sampling_config", n.of(SamplingConfig), SamplingConfig),
        Arg("output_config", n.of(OutputConfig), OutputConfig),
        Arg("end_id", n.optional(n.int32), None),
        Arg("pad_id", n.optional(n.int32), None),
        Arg("position_ids", n.optional(n.vector(n.int32)), None),
        Arg("bad_words", _words, None),
        Arg("stop_words", _words, None),
        Arg("embedding_bias", _any, None),
        Arg("prompt_tuning_config", _any, None),
        Arg("multimodal_input", _any, None),
        Arg("multimodal_embedding", _any, None),
        Arg("mrope_config", _any, None),
        Arg("lora_config", _any, None),
        *_SPECULATION,
        Arg("kv_cache_retention_config", _any, None),
        Arg("logits_post_processor_name", n.optional(n.text), None),
        Arg("logits_post_processor", _any, None),
        Arg("encoder_input_token_ids", n.optional(n.vector(n.int32)), None),
        Arg("client_id", n.optional(n.uint64), None),
        Arg("return_all_generated_tokens", n.boolean, False),
        Arg("priority", n.float32, 0.5, is_property=False),
        Arg(
            "type",
            n.of(RequestType),
            RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION,
            is_property=False,
        ),
        Arg("context_phase_params", _any, None),
        Arg("encoder_input_features", _any, None),
        Arg("encoder_output_length", n.optional(n.int32), None, is_property=False),
        Arg("cross_attention_mask", _any, None),
        Arg("num_return_sequences", n.int32, 1, is_property=False),
        Arg("skip_cross_attn_blocks", _any, None),
        Arg("guided_decoding_params", _any, None),
        Arg("language_adapter_uid", n.optional(n.int32), None, is_property=False),
        Arg("allotted_time_ms", n.optional(n.duration), None),
        *([Arg("cache_salt_id", n.optional(n.uint64), None)] if at_least(1, 1) else []),
    )

    def _validate(self) -> None:
        file = "executor/requestImpl.h"
        check(bool(self._stored["input_token_ids"]), "!mInputTokenIds.empty()", file)
        check(self._stored["max_tokens"] > 0, "mMaxNewTokens > 0", file)
        if self._stored["guided_decoding_params"] is not None:
            beams = self._stored["sampling_config"].beam_width
            check(beams == 1, "Guided decoding does not support with beam search.", file)
