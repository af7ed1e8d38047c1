"""The library's ExecutorConfig: what trtla sets, and what is handed on by the library's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtla.settings.executor import TrtllmSettings
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.passed_on import EXECUTOR, read
from trtla.trtllm.library_fields import executor_kinds, put, refused

_CACHE, _SCHEDULER, _PARALLEL = "kv_cache_config", "scheduler_config", "parallel_config"
_TUNING, _CHUNKS = "dynamic_batch_config", "context_chunking_policy"
_FAIL_FAST = "fail_fast_on_attention_window_too_large"


def asked_of_executor(settings: TrtllmSettings) -> dict[str, Any]:
    """What --trtllm-executor names, checked.

    Raises:
        UsageError: a name or a value is not usable.
    """
    return read(EXECUTOR, settings.trtllm_executor, executor_kinds)


def executor_config(
    bindings: Any, triple: LookaheadConfig, max_batch_size: int, settings: TrtllmSettings
) -> Any:
    """The library's ExecutorConfig; every default that changed between releases is given.

    Raises:
        UsageError: this release does not know, or refuses, a setting that is handed on.
    """
    asked = asked_of_executor(settings)
    config = bindings.ExecutorConfig(
        max_beam_width=1,
        max_batch_size=max_batch_size,
        scheduler_config=_scheduler(bindings, settings, asked),
        kv_cache_config=_with(
            bindings.KvCacheConfig(
                enable_block_reuse=settings.kv_cache_enable_block_reuse,
                free_gpu_memory_fraction=settings.kv_cache_free_gpu_memory_fraction,
            ),
            _CACHE,
            asked,
        ),
        enable_chunked_context=settings.enable_chunked_context,
    )
    if hasattr(config, _FAIL_FAST):  # from 1.0 on
        # A K/V cache without room for max_seq_len would shorten prompts and texts with a warning.
        setattr(config, _FAIL_FAST, True)
    if triple.max_draft_len:  # a plain engine does not start with any triple, e.g. (1,2,0)
        decoding = bindings.DecodingConfig()
        # The setter also sets the mode; setting the mode itself throws (decodingConfig.cpp).
        decoding.lookahead_decoding_config = lookahead_config(bindings, triple)
        config.decoding_config = decoding
    parallel = bindings.ParallelConfig(
        bindings.CommunicationType.MPI, bindings.CommunicationMode.LEADER
    )
    config.parallel_config = _with(parallel, _PARALLEL, asked)
    return _others(config, asked)


def lookahead_config(bindings: Any, triple: LookaheadConfig) -> Any:
    """The triple as the library has it."""
    return bindings.LookaheadDecodingConfig(*triple.as_tuple())


def _inside(name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of one of the objects inside, by the rest of the name."""
    start = f"{name}."
    return {key[len(start) :]: value for key, value in asked.items() if key.startswith(start)}


def _with(config: Any, name: str, asked: Mapping[str, Any]) -> Any:
    for key, value in _inside(name, asked).items():
        put(config, key, value, f"{name}.{key}", EXECUTOR.flag)
    return config


def _scheduler(bindings: Any, settings: TrtllmSettings, asked: Mapping[str, Any]) -> Any:
    """Its properties are read-only: everything goes through the constructor."""
    policies, given = bindings.CapacitySchedulerPolicy, _inside(_SCHEDULER, asked)
    more: dict[str, Any] = {}
    try:
        if _CHUNKS in given:
            more[_CHUNKS] = getattr(bindings.ContextChunkingPolicy, given[_CHUNKS])
        if tuning := _inside(_TUNING, given):
            more[_TUNING] = bindings.DynamicBatchConfig(**tuning)
    except TypeError as error:  # it has no defaults
        raise refused(EXECUTOR.flag, given, error) from error
    return bindings.SchedulerConfig(getattr(policies, settings.scheduler_policy.upper()), **more)


def _others(config: Any, asked: Mapping[str, Any]) -> Any:
    """The settings of the configuration itself, and of objects inside that trtla leaves alone."""
    for name, value in asked.items():
        inside, dot, _ = name.partition(".")
        if not dot:
            put(config, name, value, name, EXECUTOR.flag)
        elif inside not in (_CACHE, _SCHEDULER, _PARALLEL):
            # C++ gives copies of what is inside: it is changed, and put back.
            setattr(config, inside, _with(getattr(config, inside), inside, {name: value}))
    return config
