"""Requests and their sampling; TensorRT-LLM nanobind/executor/request.cpp, samplingConfig.cpp.

Nothing is checked about a request's lookahead configuration here, as in the real library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._version import at_least
from . import _native as n
from ._cpp import check
from ._decoding import LookaheadDecodingConfig
from ._native import Arg, Native


def _floats(*names: str) -> tuple[Arg, ...]:
    return tuple(Arg(name, n.optional(n.float32), None) for name in names)


def _integers(*names: str) -> tuple[Arg, ...]:
    return tuple(Arg(name, n.optional(n.int32), None) for name in names)


class SamplingConfig(Native):
    """How tokens are chosen; everything after the beam width is keyword-only.

    Not set means seed 0, temperature 1, top_k 0 and top_p 0, and the last two mean argmax.
    """

    _positional = 1
    _args = (
        Arg("beam_width", n.int32, 1),
        Arg("top_k", n.optional(n.int32), None),
        Arg("top_p", n.optional(n.float32), None),
        Arg("seed", n.optional(n.uint64), None),
        Arg("temperature", n.optional(n.float32), None),
        Arg("min_tokens", n.optional(n.int32), None),
        *_floats("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *_floats("top_p_min", "top_p_decay", "beam_search_diversity_rate", "length_penalty"),
        *_integers("top_p_reset_ids", "early_stopping", "no_repeat_ngram_size"),
        *_integers("num_return_sequences", *(["prompt_ignore_length"] if at_least(1, 1) else [])),
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
    ("temperature", lambda v: v >= 0, "temperature.value() >= 0.f"),
    ("min_tokens", lambda v: v >= 0, "minTokens.value() >= 0"),
    ("min_p", lambda v: 0 <= v <= 1, "minP.value() >= 0.f && minP.value() <= 1.f"),
)


class OutputConfig(Native):
    _args = (
        Arg("return_log_probs", n.boolean, False),
        Arg("return_context_logits", n.boolean, False),
        Arg("return_generation_logits", n.boolean, False),
        Arg("exclude_input_from_output", n.boolean, False),
        *n.kept("return_encoder_output", "return_perf_metrics", "additional_model_outputs"),
    )


_SPECULATION = (
    (
        *n.kept("external_draft_tokens_config", "eagle_config"),
        Arg("lookahead_config", n.optional(n.of(LookaheadDecodingConfig)), None),
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
        *_integers("pad_id"),
        *n.kept(
            "position_ids", "bad_words", "stop_words", "embedding_bias", "prompt_tuning_config"
        ),
        *n.kept("multimodal_input", "multimodal_embedding", "mrope_config"),
        *_SPECULATION,
        *n.kept("prompt_tuning_config", "kv_cache_retention_config", "logits_post_processor_name"),
        *n.kept("logits_post_processor", "encoder_input_token_ids"),
        Arg("client_id", n.optional(n.uint64), None),
        Arg("return_all_generated_tokens", n.boolean, False),
        Arg("priority", n.float32, 0.5, is_property=False),
        Arg("type", n.anything, None, is_property=False),
        Arg("num_return_sequences", n.int32, 1, is_property=False),
        *n.kept("context_phase_params", "encoder_input_features", "encoder_output_length"),
        *n.kept("cross_attention_mask", "skip_cross_attn_blocks", "guided_decoding_params"),
        *n.kept("language_adapter_uid"),
        Arg("allotted_time_ms", n.optional(n.duration), None),
        *([Arg("cache_salt_id", n.optional(n.uint64), None)] if at_least(1, 1) else []),
    )

    def _validate(self) -> None:
        file = "executor/requestImpl.h"
        check(bool(self._stored["input_token_ids"]), "!mInputTokenIds.empty()", file)
        check(self._stored["max_tokens"] > 0, "mMaxNewTokens > 0", file)
