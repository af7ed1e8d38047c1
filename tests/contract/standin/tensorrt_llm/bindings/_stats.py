"""Statistics; TensorRT-LLM executor/types.h. Counters that the stand-in does not have are 0."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, make_dataclass
from typing import Any

from .._version import at_least
from ._enums import RequestStage


@dataclass
class KvCacheStats:
    """Blocks of the K/V cache: those that active requests need, none kept for later ones."""

    max_num_blocks: int = 0
    free_num_blocks: int = 0
    used_num_blocks: int = 0
    tokens_per_block: int = 0


@dataclass
class InflightBatchingStats:
    """What ran in one iteration."""

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
        """All of it as JSON."""
        return json.dumps(asdict(self))


_newer: list[Any] = [("specdec_stats", Any, field(default=None))] if at_least(1, 1) else []
IterationStats: Any = make_dataclass("IterationStats", _newer, bases=(_IterationStats,))
IterationStats.__doc__ = "Statistics of one iteration of the executor."


@dataclass
class RequestStats:
    """How far one request is."""

    id: int
    stage: RequestStage
    context_prefill_position: int = 0
    num_generated_tokens: int = 0
    avg_num_decoded_tokens_per_iter: float = 0.0
    scheduled: bool = False
    paused: bool = False
    dis_serving_stats: None = None
    alloc_total_blocks_per_request: int = 0
    alloc_new_blocks_per_request: int = 0
    reused_blocks_per_request: int = 0


@dataclass
class RequestStatsPerIteration:
    """All requests in one iteration."""

    iter: int
    request_stats: list[RequestStats]


@dataclass
class SpeculativeDecodingMetrics:
    """Counters by path position: drafts of a step count N - 1 at most."""

    acceptance_rate: float = 0.0
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0


@dataclass
class RequestPerfMetrics:
    """Measurements of a request; times are not modelled."""

    timing_metrics: None = None
    kv_cache_metrics: None = None
    speculative_decoding: SpeculativeDecodingMetrics = field(
        default_factory=SpeculativeDecodingMetrics
    )
    first_iter: int | None = None
    last_iter: int | None = None
    iter: int | None = None


for _class in (
    SpeculativeDecodingMetrics,
    RequestPerfMetrics,
    KvCacheStats,
    InflightBatchingStats,
    IterationStats,
    RequestStats,
    RequestStatsPerIteration,
):
    _class.__module__ = "tensorrt_llm.bindings.executor"
