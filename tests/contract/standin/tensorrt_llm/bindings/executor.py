"""The names of tensorrt_llm.bindings.executor; TensorRT-LLM nanobind/executor/bindings.cpp.

Releases after the removal of the TensorRT backend keep the configurations and lose `Executor`.
"""

# ruff: noqa: F401

from __future__ import annotations

from .._version import HAS_BACKEND, __version__
from ._configs import (
    DynamicBatchConfig,
    ExecutorConfig,
    ExtendedRuntimePerfKnobConfig,
    KvCacheConfig,
    ParallelConfig,
    PeftCacheConfig,
    SchedulerConfig,
)
from ._decoding import DecodingConfig, DecodingMode, LookaheadDecodingConfig
from ._enums import (
    BatchingType,
    CapacitySchedulerPolicy,
    CommunicationMode,
    CommunicationType,
    ContextChunkingPolicy,
    FinishReason,
    ModelType,
)
from ._requests import OutputConfig, Request, SamplingConfig
from ._responses import Response, Result
from ._stats import InflightBatchingStats, IterationStats, KvCacheStats

if HAS_BACKEND:
    from ._executor import Executor
