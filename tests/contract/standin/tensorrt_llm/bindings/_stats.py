"""Statistics; TensorRT-LLM executor/types.h. Counters that the stand-in does not have are 0."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, make_dataclass
from typing import Any

from .._version import at_least


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
    num_paused_requests: int = 0
    num_ctx_tokens: int = 0
    micro_batch_id: int = 0
    avg_num_decoded_tokens_per_iter: float = 0.0


@dataclass
class _IterationStats:
    timestamp: str = ""
    iter: int = 0
    iter_latency_ms: float = 0.0
    new_active_requests_queue_latency_ms: float = 0.0
    num_new_active_requests: int = 0
    num_active_requests: int = 0
    num_queued_requests: int = 0
    num_completed_requests: int = 0
    max_num_active_requests: int = 0
    gpu_mem_usage: int = 0
    cpu_mem_usage: int = 0
    pinned_mem_usage: int = 0
    kv_cache_stats: KvCacheStats = field(default_factory=KvCacheStats)
    cross_kv_cache_stats: KvCacheStats | None = None
    static_batching_stats: None = None
    inflight_batching_stats: InflightBatchingStats | None = None

    def to_json_str(self) -> str:
        return json.dumps(asdict(self))


_newer: list[Any] = [("specdec_stats", Any, field(default=None))] if at_least(1, 1) else []
IterationStats: Any = make_dataclass("IterationStats", _newer, bases=(_IterationStats,))
IterationStats.__doc__ = "Statistics of one iteration of the executor."


for _class in (KvCacheStats, InflightBatchingStats, IterationStats):
    _class.__module__ = "tensorrt_llm.bindings.executor"
