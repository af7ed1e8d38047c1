"""What an executor checks and settles before it takes requests.

TensorRT-LLM executorImpl.cpp, trtGptModel.h, trtGptModelInflightBatching.cpp,
lookaheadDecodingLayer.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._standin import StandinUndefinedBehaviour
from . import _cpp
from ._configs import ExecutorConfig
from ._cpp import check, throw
from ._decoding import LookaheadDecodingConfig
from ._engine_files import EngineFacts
from ._enums import BatchingType, CapacitySchedulerPolicy, CommunicationMode

Triple = tuple[int, int, int]
_MODEL = "batch_manager/trtGptModel.h"
_INFLIGHT = "batch_manager/trtGptModelInflightBatching.cpp"
_LAYER = "layers/lookaheadDecodingLayer.cpp"


@dataclass(frozen=True)
class Started:
    """The limits in force."""

    max_batch_size: int
    max_num_tokens: int
    max_input_len: int
    chunked: bool
    no_evict: bool
    lookahead: Triple | None
    """None on a plain engine."""


def start(engine: EngineFacts, config: ExecutorConfig) -> Started:
    """Check an engine and a configuration as C++ does.

    Raises:
        RuntimeError: they do not fit.
    """
    if config.batching_type == BatchingType.STATIC:
        raise throw(
            "Static batching type is deprecated. Please use in-flight batching with "
            "CapacitySchedulerPolicy::kSTATIC_BATCH instead.",
            "executor/executorImpl.cpp",
        )
    check(
        engine.attention_plugin and engine.packed and engine.paged,
        "TrtGptModelInflightBatching requires GPT attention/Mamba Conv 1d plugin with packed input "
        "and paged KV cache.",
        _INFLIGHT,
    )
    batch_size = _batch_size(engine, config)
    chunked = _chunked(engine, config)
    num_tokens = _num_tokens(engine, config)
    input_len = _input_len(engine, chunked, num_tokens)
    lookahead = _lookahead(engine, config) if engine.lookahead else None
    if not engine.lookahead:
        _overwrite_mode(config)
    policy = config.scheduler_config.capacity_scheduler_policy
    no_evict = policy != CapacitySchedulerPolicy.MAX_UTILIZATION
    _cpp.log("INFO", f"TRTGptModel maxBatchSize: {batch_size}")
    _cpp.log("INFO", f"TRTGptModel maxInputLen: {input_len}")
    return Started(batch_size, num_tokens, input_len, chunked, no_evict, lookahead)


def check_ranks(engine: EngineFacts, config: ExecutorConfig, world_size: int) -> None:
    """Refuse to start in a number of processes that is not the engine's."""
    parallel = config.parallel_config
    if parallel and parallel.communication_mode == CommunicationMode.ORCHESTRATOR:
        raise StandinUndefinedBehaviour("CommunicationMode.ORCHESTRATOR is not modelled")
    if parallel and parallel.participant_ids is not None:
        raise StandinUndefinedBehaviour("participant_ids are not modelled")
    check(
        world_size == engine.world_size,
        "With communicationMode kLEADER, MPI worldSize is expected to be equal to tp*pp*cp when "
        "participantIds are not specified",
        "executor/executorImpl.cpp",
    )


def _batch_size(engine: EngineFacts, config: ExecutorConfig) -> int:
    beam, batch = config.max_beam_width, config.max_batch_size or engine.max_batch_size
    check(
        beam <= engine.max_beam_width,
        f"Runtime configured max beam width ({beam}) must not exceed engine max beam width "
        f"({engine.max_beam_width})",
        _MODEL,
    )
    check(
        batch <= engine.max_batch_size,
        f"Runtime configured max batch size ({batch}) must not exceed engine max batch size "
        f"({engine.max_batch_size})",
        _MODEL,
    )
    if engine.lookahead:
        check(beam == 1, "Beam width must be 1 in Lookahead decoding.", _LAYER)
    return int(batch)


def _num_tokens(engine: EngineFacts, config: ExecutorConfig) -> int:
    asked = config.max_num_tokens
    if asked is not None and asked > engine.max_num_tokens:
        _cpp.log(
            "WARNING",
            f"Runtime configured max num tokens ({asked}) is larger than model max num tokens "
            f"({engine.max_num_tokens}) and will be ignored.",
        )
        asked = None
    return int(asked or engine.max_num_tokens)


def _chunked(engine: EngineFacts, config: ExecutorConfig) -> bool:
    paged = engine.context_fmha and engine.paged_context_fmha
    if config.kv_cache_config.enable_block_reuse and (not paged or engine.context_logits):
        _cpp.log(
            "WARNING", "Fix optionalParams : KV cache reuse disabled because model was not built "
            "with paged context FMHA support"
        )  # fmt: skip
    if config.enable_chunked_context and not paged:
        _cpp.log(
            "WARNING", "Fix optionalParams : Chunked context disabled because model was not built "
            "with paged context FMHA support"
        )  # fmt: skip
        return False
    return bool(config.enable_chunked_context)


def _input_len(engine: EngineFacts, chunked: bool, num_tokens: int) -> int:
    """The longest prompt: the strictest of what the sources say.

    With context FMHA and packed input trtGptModel.h takes min(max_seq_len - 1, max_num_tokens) and
    forgets the build's max_input_len; here that counts too.
    """
    if chunked:
        return min(engine.max_input_len, engine.max_seq_len - 1)
    check(
        engine.max_input_len <= num_tokens,
        f"Without enabling chunked context, the max context length ({engine.max_input_len}) needs "
        f"to be less than or equal to the max number of tokens ({num_tokens}).",
        "batch_manager/microBatchScheduler.cpp",
    )
    return min(engine.max_input_len, engine.max_seq_len - 1, num_tokens)


def _overwrite_mode(config: ExecutorConfig) -> None:
    decoding = config.decoding_config
    if decoding and decoding.decoding_mode and decoding.decoding_mode.isLookahead():
        _cpp.log(
            "WARNING", "Model is not built with Lookahead decoding, but decoding mode is "
            "Lookahead. Overwriting decoding mode."
        )  # fmt: skip


def _lookahead(engine: EngineFacts, config: ExecutorConfig) -> Triple:
    """The server's triple; without a configuration (4,3,4), which fits few engines."""
    decoding = config.decoding_config
    if decoding and decoding.decoding_mode and not decoding.decoding_mode.isLookahead():
        _cpp.log(
            "WARNING", "Model is Lookahead, but decoding mode is not Lookahead. Overwriting "
            "decoding mode to Lookahead."
        )  # fmt: skip
    given = decoding.lookahead_decoding_config if decoding else None
    if given is None:
        given = LookaheadDecodingConfig(4, 3, 4)
        tokens = given.calculate_speculative_resource()[0]
        check(tokens == engine.max_draft_len + 1, f"{tokens} != {engine.max_draft_len + 1}", _LAYER)
    _check_drafts(given.calculate_speculative_resource()[2], engine.max_draft_len)
    _check_features(config)
    return triple_of(given)


def _check_drafts(drafts: int, largest: int) -> None:
    text = "maxDraftTokens <= mModelConfig.getMaxDecodingDraftTokens()"
    check(drafts <= largest, text, _INFLIGHT)
    if drafts == 0:
        raise StandinUndefinedBehaviour("a server triple without drafts on a lookahead engine")


def _check_features(config: ExecutorConfig) -> None:
    windows = config.kv_cache_config.max_attention_window
    check(
        windows is None or len(set(windows)) == 1,
        "Rewinding KV cache blocks for models with multiple pools is not supported",
        _INFLIGHT,
    )
    if config.enable_trt_overlap:
        _cpp.log(
            "WARNING", "TRT overlap is not supported with speculative decoding and will be "
            "disabled."
        )  # fmt: skip


def triple_of(config: LookaheadDecodingConfig) -> Triple:
    """(W, N, G) as plain integers."""
    return config.max_window_size, config.max_ngram_size, config.max_verification_set_size
