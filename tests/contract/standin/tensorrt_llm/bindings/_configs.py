"""The executor's configuration; TensorRT-LLM nanobind/executor/executorConfig.cpp.

Range checks that only concern features that trtla does not use are left out.
"""

from __future__ import annotations

from typing import Any

from .._version import at_least
from . import _native as n
from ._cpp import check
from ._decoding import DecodingConfig
from ._enums import (
    BatchingType,
    CapacitySchedulerPolicy,
    CommunicationMode,
    CommunicationType,
    ContextChunkingPolicy,
)
from ._native import Arg, Native

_FAIL_FAST = ("fail_fast_on_attention_window_too_large",)


class DynamicBatchConfig(Native):
    _args = (
        Arg("enable_batch_size_tuning", n.boolean, read_only=True),
        Arg("enable_max_num_tokens_tuning", n.boolean, read_only=True),
        Arg("dynamic_batch_moving_average_window", n.int32, read_only=True),
    )


class SchedulerConfig(Native):
    """Which requests run; its properties are read-only."""

    _args = (
        Arg(
            "capacity_scheduler_policy",
            n.of(CapacitySchedulerPolicy),
            CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
            read_only=True,
        ),
        Arg("context_chunking_policy", n.optional(n.of(ContextChunkingPolicy)), None, True),
        Arg("dynamic_batch_config", n.optional(n.of(DynamicBatchConfig)), None, read_only=True),
    )


class KvCacheConfig(Native):
    """The K/V cache; the first ten may be positional."""

    _positional = 10
    _args = (
        Arg("enable_block_reuse", n.boolean, True),
        Arg("max_tokens", n.optional(n.int32), None),
        Arg("max_attention_window", n.optional(n.vector(n.int32)), None),
        Arg("sink_token_length", n.optional(n.int32), None),
        Arg("free_gpu_memory_fraction", n.optional(n.float32), None),
        Arg("host_cache_size", n.optional(n.size_t), None),
        Arg("onboard_blocks", n.boolean, True),
        Arg("cross_kv_cache_fraction", n.optional(n.float32), None),
        Arg("secondary_offload_min_priority", n.optional(n.int32), None),
        Arg("event_buffer_max_size", n.size_t, 0),
        Arg("enable_partial_reuse", n.boolean, True),
        Arg("copy_on_partial_reuse", n.boolean, True),
        Arg("use_uvm", n.boolean, False),
        *([Arg("attention_dp_events_gather_period_ms", n.int32, 5)] if at_least(1, 1) else []),
        Arg("runtime_defaults", n.optional(n.anything), None, is_property=False),
        *([Arg("max_gpu_total_bytes", n.size_t, 0)] if at_least(1, 2) else []),
    )

    def _validate(self) -> None:
        share = self._stored["free_gpu_memory_fraction"]
        check(share is None or 0 < share <= 1, "mFreeGpuMemoryFraction", "executor/kvCacheConfig")


class ParallelConfig(Native):
    _args = (
        Arg("communication_type", n.of(CommunicationType), CommunicationType.MPI),
        Arg("communication_mode", n.of(CommunicationMode), CommunicationMode.LEADER),
        Arg("device_ids", n.optional(n.vector(n.int32)), None),
        Arg("participant_ids", n.optional(n.vector(n.int32)), None),
        *n.kept("orchestrator_config"),
        Arg("num_nodes", n.optional(n.int32), None),
    )


class PeftCacheConfig(Native):
    """The cache of adapters; values are kept only."""

    _args = (
        *(
            Arg(name, n.int32, value)
            for name, value in (
                ("num_host_module_layer", 0),
                ("num_device_module_layer", 0),
                ("optimal_adapter_size", 8),
                ("max_adapter_size", 64),
                ("max_pages_per_block_host", 24),
                ("max_pages_per_block_device", 8),
            )
        ),
        Arg("device_cache_percent", n.optional(n.float32), None),
        Arg("host_cache_size", n.optional(n.size_t), None),
    )


class ExtendedRuntimePerfKnobConfig(Native):
    """Knobs of the attention kernels; the last two are properties only."""

    _positional = 2
    _args = (
        Arg("multi_block_mode", n.boolean, True),
        Arg("enable_context_fmha_fp32_acc", n.boolean, False),
        Arg("cuda_graph_mode", n.boolean, False),
        Arg("cuda_graph_cache_size", n.int32, 0),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in ("cuda_graph_mode", "cuda_graph_cache_size"):
            if name in kwargs:
                raise TypeError(f"__init__(): incompatible function arguments: {name}")
        super().__init__(*args, **kwargs)


class ExecutorConfig(Native):
    """Everything an executor starts with; takes further attributes as a Python object does."""

    _dynamic = True
    _args = (
        Arg("max_beam_width", n.int32, 1),
        Arg("scheduler_config", n.of(SchedulerConfig), SchedulerConfig, by_reference=True),
        Arg("kv_cache_config", n.of(KvCacheConfig), KvCacheConfig, by_reference=True),
        Arg("enable_chunked_context", n.boolean, False),
        Arg("normalize_log_probs", n.boolean, True),
        Arg("iter_stats_max_iterations", n.int32, 1000),
        Arg("request_stats_max_iterations", n.int32, 0),
        Arg("batching_type", n.of(BatchingType), BatchingType.INFLIGHT),
        Arg("max_batch_size", n.optional(n.int32), None),
        Arg("max_num_tokens", n.optional(n.int32), None),
        Arg("parallel_config", n.optional(n.of(ParallelConfig)), None),
        Arg("peft_cache_config", n.optional(n.of(PeftCacheConfig)), PeftCacheConfig),
        *n.kept("logits_post_processor_config"),
        Arg("decoding_config", n.optional(n.of(DecodingConfig)), None),
        Arg("use_gpu_direct_storage", n.boolean, False),
        Arg("gpu_weights_percent", n.float32, 1.0),
        Arg("max_queue_size", n.optional(n.int32), None),
        Arg(
            "extended_runtime_perf_knob_config",
            n.of(ExtendedRuntimePerfKnobConfig),
            ExtendedRuntimePerfKnobConfig,
        ),
        *n.kept("debug_config"),
        Arg("recv_poll_period_ms", n.int32, 0),
        Arg("max_seq_idle_microseconds", n.uint64, 180000000),
        *n.kept("spec_dec_config", "guided_decoding_config", "additional_model_outputs"),
        *n.kept("cache_transceiver_config"),
        Arg("gather_generation_logits", n.boolean, False),
        Arg("mm_embedding_offloading", n.boolean, False),
        Arg("enable_trt_overlap", n.boolean, False),
        *[Arg(name, n.boolean, False) for name in _FAIL_FAST if at_least(1, 0)],
    )

    def _validate(self) -> None:
        for name in ("max_beam_width", "max_batch_size", "max_num_tokens"):
            value = self._stored[name]
            check(value is None or value > 0, f"{name} > 0", "executor/executorConfig.cpp")
