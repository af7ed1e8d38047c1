"""How much memory an engine's weights, K/V cache and logits take, in exact bytes.

Activations are not estimated: they follow what TensorRT or PyTorch chooses, and what it fuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtla.build.plan import DTYPE_BYTES, rank_plan
from trtla.config import BuildConfig, CheckpointConfig


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What an engine takes on its largest rank (`_per_rank`) and on all ranks together.

    The K/V cache is that of a full batch of sequences of max_seq_len tokens; `draft_kv_cache_bytes`
    is the part of it that the draft tokens need. The logits are those of one step of a full batch.
    """

    ranks: int
    weight_bytes: int
    weight_bytes_per_rank: int
    kv_cache_bytes: int
    kv_cache_bytes_per_rank: int
    draft_kv_cache_bytes: int
    draft_kv_cache_bytes_per_rank: int
    step_tokens: int
    """Tokens that a step of a full batch feeds: one and the drafts for every sequence."""
    logits_bytes: int


def estimate_memory(config: CheckpointConfig, build_config: BuildConfig) -> MemoryEstimate:
    """The memory of an engine whose ranks are those of the config's mapping."""
    ranks, batch_size = config.mapping.world_size, build_config.max_batch_size
    step_tokens = batch_size * (build_config.max_draft_len + 1)
    weights = [sum(target.nbytes for target in rank_plan(config, rank)) for rank in range(ranks)]
    cache = kv_cache_bytes(config, build_config)
    drafts = batch_size * build_config.max_draft_len * kv_bytes_per_token(config)
    return MemoryEstimate(
        ranks=ranks,
        weight_bytes=sum(weights),
        weight_bytes_per_rank=max(weights),
        kv_cache_bytes=cache * ranks,
        kv_cache_bytes_per_rank=cache,
        draft_kv_cache_bytes=drafts * ranks,
        draft_kv_cache_bytes_per_rank=drafts,
        step_tokens=step_tokens,
        logits_bytes=step_tokens * config.vocab_size * DTYPE_BYTES[config.logits_dtype],
    )


def kv_cache_bytes(config: CheckpointConfig, build_config: BuildConfig) -> int:
    """Bytes of one rank's keys and values when a full batch has its full length."""
    tokens = build_config.max_batch_size * build_config.max_seq_len
    return tokens * kv_bytes_per_token(config)


def kv_bytes_per_token(config: CheckpointConfig) -> int:
    """Bytes of one rank's keys and values of one token."""
    mapping = config.mapping
    heads = max(config.num_key_value_heads // mapping.tp_size, 1)
    layers = config.num_hidden_layers // mapping.pp_size
    size = 1 if config.quantization.kv_cache_quant_algo else DTYPE_BYTES[config.dtype]
    return 2 * layers * heads * config.head_size * size
