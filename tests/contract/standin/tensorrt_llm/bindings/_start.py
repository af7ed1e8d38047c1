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
    max_batch_size: int
    max_num_tokens: int
    max_input_len: int
    max_seq_len: int
    chunked: bool
    no_evict: bool
    lookahead: Triple | None
    """None on a plain engine."""
    configured: bool
    """False where a lookahead engine runs with the built-in triple."""


def start(engine: EngineFacts, config: ExecutorConfig, kv_tokens: int) -> Started:
    """Check an engine and a configuration as C++ does; `kv_tokens` is the room of the K/V pool.

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
    lookahead = _lookahead(engine, config) if engine.lookahead else None
    if not engine.lookahead:
        _refuse_mode(config)
    seq_len = _clamped(engine.max_seq_len, config, kv_tokens)
    input_len = min(_input_len(engine, chunked, num_tokens), seq_len - 1)
    policy = config.scheduler_config.capacity_scheduler_policy
    no_evict = policy == CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    _cpp.log("INFO", f"TRTGptModel maxBatchSize: {batch_size}")
    _cpp.log("INFO", f"TRTGptModel maxInputLen: {input_len}")
    configured = _given(config) is not None
    return Started(
        batch_size, num_tokens, input_len, seq_len, chunked, no_evict, lookahead, configured
    )


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
    """The longest prompt; the build's max_input_len counts without context FMHA alone."""
    if chunked:
        return engine.max_seq_len - 1
    if engine.context_fmha:
        return min(engine.max_seq_len - 1, num_tokens)
    check(
        engine.max_input_len <= num_tokens,
        f"Without enabling chunked context, the max context length ({engine.max_input_len}) needs "
        f"to be less than or equal to the max number of tokens ({num_tokens}).",
        _INFLIGHT,
    )
    return engine.max_input_len


def _clamped(seq_len: int, config: ExecutorConfig, kv_tokens: int) -> int:
    """The longest sequence that the K/V pool can hold, where that is less than the engine's."""
    if kv_tokens >= seq_len:
        return seq_len
    sizes = f"Old: [{seq_len}], New: [{kv_tokens}]"
    _cpp.log(
        "WARNING",
        f"maxAttentionWindowVec too large to fit at least one sequence in kvCache. {sizes}",
    )
    if getattr(config, "fail_fast_on_attention_window_too_large", False):
        raise RuntimeError(
            "Attention window too large to fit even a single sequence in the KV cache. Failing "
            f"fast rather than attempting an adjustment of the window sizes. {sizes}"
        )
    if kv_tokens < 2:
        raise StandinUndefinedBehaviour(f"a K/V pool of {kv_tokens} tokens")
    _cpp.log("WARNING", f"maxSequenceLen is reduced to maxAttentionWindow: {kv_tokens}")
    return kv_tokens


def _refuse_mode(config: ExecutorConfig) -> None:
    """The warning announces another mode, and then the configured one is taken again."""
    decoding = config.decoding_config
    if not (decoding and decoding.decoding_mode and decoding.decoding_mode.isLookahead()):
        return
    _cpp.log(
        "WARNING", "Model is not built with Lookahead decoding, but decoding mode is "
        "Lookahead. Overwriting decoding mode."
    )  # fmt: skip
    text = "Speculative decoding module is not set to decoder domain"
    check(False, text, "layers/decodingParams.h")


def _lookahead(engine: EngineFacts, config: ExecutorConfig) -> Triple:
    """The server's triple; without a configuration (4,3,4), which fits few engines."""
    decoding = config.decoding_config
    if decoding and decoding.decoding_mode and not decoding.decoding_mode.isLookahead():
        _cpp.log(
            "WARNING", "Model is Lookahead, but decoding mode is not Lookahead. Overwriting "
            "decoding mode to Lookahead."
        )  # fmt: skip
    given = _given(config)
    if given is None:
        given = LookaheadDecodingConfig(4, 3, 4)
        tokens = given.calculate_speculative_resource()[0]
        check(tokens == engine.max_draft_len + 1, f"{tokens} != {engine.max_draft_len + 1}", _LAYER)
    _check_drafts(given.calculate_speculative_resource()[2], engine.max_draft_len)
    _check_features(config)
    return triple_of(given)


def _given(config: ExecutorConfig) -> LookaheadDecodingConfig | None:
    decoding = config.decoding_config
    given: LookaheadDecodingConfig | None = decoding and decoding.lookahead_decoding_config
    return given


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


def draft_len(triple: Triple) -> int:
    w, n, g = triple
    return (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1)


def mask_words(drafts: int) -> int:
    """32-bit words in a row of the packed mask."""
    return -(-(drafts + 1) // 32)


def triple_of(config: LookaheadDecodingConfig) -> Triple:
    """(W, N, G) as plain integers."""
    return config.max_window_size, config.max_ngram_size, config.max_verification_set_size
