"""Statistics; TensorRT-LLM executor/types.h: the counters that the stand-in has."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class KvCacheStats:
    """Blocks of the K/V cache: those that active requests need, none kept for later ones."""

    max_num_blocks: int = 0
    free_num_blocks: int = 0
    used_num_blocks: int = 0
    tokens_per_block: int = 0


@dataclass
class InflightBatchingStats:
    num_scheduled_requests: int = 0
    num_context_requests: int = 0
    num_gen_requests: int = 0
    num_ctx_tokens: int = 0
    avg_num_decoded_tokens_per_iter: float = 0.0


@dataclass
class IterationStats:
    iter: int = 0
    iter_latency_ms: float = 0.0
    num_new_active_requests: int = 0
    num_active_requests: int = 0
    num_queued_requests: int = 0
    num_completed_requests: int = 0
    max_num_active_requests: int = 0
    kv_cache_stats: KvCacheStats = field(default_factory=KvCacheStats)
    inflight_batching_stats: InflightBatchingStats | None = None


for _class in (KvCacheStats, InflightBatchingStats, IterationStats):
    _class.__module__ = "tensorrt_llm.bindings.executor"
