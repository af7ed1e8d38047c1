"""Enumerations of tensorrt_llm.bindings.executor; TensorRT-LLM types.h."""

from __future__ import annotations

import enum


class _Bound(enum.Enum):
    def __int__(self) -> int:
        return int(self.value)


class ModelType(_Bound):
    """Kinds of models."""

    DECODER_ONLY = 0
    ENCODER_ONLY = 1
    ENCODER_DECODER = 2


class BatchingType(_Bound):
    """How requests share steps."""

    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(_Bound):
    """Which requests get K/V blocks."""

    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(_Bound):
    """How long prompts share steps."""

    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class CommunicationType(_Bound):
    """How ranks talk."""

    MPI = 0


class CommunicationMode(_Bound):
    """Who takes requests."""

    LEADER = 0
    ORCHESTRATOR = 1


class RequestType(_Bound):
    """What part of a request is done here."""

    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


class FinishReason(_Bound):
    """Why a request ended."""

    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


class RequestStage(_Bound):
    """How far a request is."""

    QUEUED = 0
    ENCODER_IN_PROGRESS = 1
    CONTEXT_IN_PROGRESS = 2
    GENERATION_IN_PROGRESS = 3
    GENERATION_COMPLETE = 4


for _enum in (
    ModelType,
    BatchingType,
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    CommunicationType,
    CommunicationMode,
    RequestType,
    FinishReason,
    RequestStage,
):
    _enum.__module__ = "tensorrt_llm.bindings.executor"
