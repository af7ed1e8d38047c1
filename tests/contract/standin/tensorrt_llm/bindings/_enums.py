"""Enumerations of tensorrt_llm.bindings.executor; TensorRT-LLM types.h."""

from __future__ import annotations

import enum


class _Bound(enum.Enum):
    def __init_subclass__(cls) -> None:
        cls.__module__ = "tensorrt_llm.bindings.executor"

    def __int__(self) -> int:
        return int(self.value)


class ModelType(_Bound):
    DECODER_ONLY = 0
    ENCODER_ONLY = 1
    ENCODER_DECODER = 2


class BatchingType(_Bound):
    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(_Bound):
    """Which requests get K/V blocks."""

    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(_Bound):
    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class CommunicationType(_Bound):
    MPI = 0


class CommunicationMode(_Bound):
    LEADER = 0
    ORCHESTRATOR = 1


class FinishReason(_Bound):
    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5
