"""Settings in the library's own objects: trtla's, and those that are handed on by their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trtla.errors import UsageError, did_you_mean, first_line
from trtla.settings.executor import TrtllmSettings
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.passed_on import BUILD, EXECUTOR, Kind, Kinds, read
from trtla.trtllm.library import installed, installed_version, load

PLUGINS = "plugin_config."
_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "number", str: "text"}
_NESTED = ("kv_cache_config", "extended_runtime_perf_knob_config", "peft_cache_config")
_CACHE, _SCHEDULER, _PARALLEL = "kv_cache_config", "scheduler_config", "parallel_config"
_TUNING, _CHUNKS = "dynamic_batch_config", "context_chunking_policy"
_FAIL_FAST = "fail_fast_on_attention_window_too_large"


def build_kinds() -> Kinds:
    """Fields of BuildConfig and PluginConfig; nothing where there is no library."""
    if not installed():
        return {}
    config, plugins = load("builder").BuildConfig(), load("plugin").PluginConfig()
    return {**dict(_plain(config)), **dict(_plain(plugins, PLUGINS))}


def check_extra(extra: Mapping[str, Any]) -> None:
    """Whether this release's builder has what it is asked.

    A pydantic BuildConfig would drop what it does not know in silence.
    """
    if not extra:
        return
    config, plugins = load("builder").BuildConfig(), load("plugin").PluginConfig()
    for name, value in extra.items():
        inside = name.startswith(PLUGINS)
        put(plugins if inside else config, name.removeprefix(PLUGINS), value, name, BUILD.flag)


def executor_kinds() -> Kinds:
    """Fields of ExecutorConfig and of what it holds; nothing where there is no library."""
    if not installed():
        return {}
    config = load("bindings.executor").ExecutorConfig()
    found = dict(_plain(config))
    for name in _NESTED:
        found |= dict(_plain(getattr(config, name, None), f"{name}."))
    return found


def _plain(config: Any, prefix: str = "") -> Iterator[tuple[str, Kind]]:
    """Names whose default says their type; None may become anything."""
    for name in _names(config):
        value = getattr(config, name, _NESTED)
        kind = "any" if value is None else _KINDS.get(type(value))
        if kind is not None:
            yield prefix + name, kind


def _names(config: Any) -> Iterable[str]:
    """Of a pydantic model, a dataclass, or a class that C++ binds."""
    fields = getattr(type(config), "model_fields", None)
    fields = fields or getattr(config, "__dataclass_fields__", None)
    if fields is None and hasattr(config, "to_dict"):
        fields = config.to_dict()
    names = dir(config) if fields is None else fields
    return [name for name in names if not name.startswith("_")]


def put(config: Any, name: str, value: Any, whole: str, flag: str) -> None:
    """Set a field of the library's object."""
    if not hasattr(config, name):
        raise UsageError(
            f"{flag} {whole}: TensorRT-LLM {installed_version()} has no such setting in "
            f"{type(config).__name__}",
            did_you_mean(name, _names(config)).strip() or None,
        )
    try:
        setattr(config, name, value)
    except (TypeError, ValueError, RuntimeError, AssertionError, AttributeError) as error:
        raise refused(flag, {whole: value}, error) from error


def refused(flag: str, arguments: dict[str, Any], error: Exception) -> UsageError:
    """The library's own words for a setting that it does not take."""
    shown = " ".join(f"{name}={value}" for name, value in arguments.items())
    return UsageError(f"{flag} {shown}: TensorRT-LLM refuses it: {first_line(error)}", None)


def executor_extra(settings: TrtllmSettings) -> dict[str, Any]:
    """What --trtllm-executor names, checked."""
    return read(EXECUTOR, settings.trtllm_executor, executor_kinds)


def executor_config(
    bindings: Any, triple: LookaheadConfig, max_batch_size: int, settings: TrtllmSettings
) -> Any:
    """The library's ExecutorConfig; every default that changed between releases is given."""
    extra = executor_extra(settings)
    config = bindings.ExecutorConfig(
        max_beam_width=1,
        max_batch_size=max_batch_size,
        scheduler_config=_scheduler(bindings, settings, extra),
        kv_cache_config=_with(
            bindings.KvCacheConfig(
                enable_block_reuse=settings.kv_cache_enable_block_reuse,
                free_gpu_memory_fraction=settings.kv_cache_free_gpu_memory_fraction,
            ),
            _CACHE,
            extra,
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
    config.parallel_config = _with(parallel, _PARALLEL, extra)
    return _others(config, extra)


def lookahead_config(bindings: Any, triple: LookaheadConfig) -> Any:
    """The triple as the library has it."""
    return bindings.LookaheadDecodingConfig(*triple.as_tuple())


def _inside(name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of one of the objects inside, by the rest of the name."""
    start = f"{name}."
    return {key[len(start) :]: value for key, value in extra.items() if key.startswith(start)}


def _with(config: Any, name: str, extra: Mapping[str, Any]) -> Any:
    for key, value in _inside(name, extra).items():
        put(config, key, value, f"{name}.{key}", EXECUTOR.flag)
    return config


def _scheduler(bindings: Any, settings: TrtllmSettings, extra: Mapping[str, Any]) -> Any:
    """Its properties are read-only: everything goes through the constructor."""
    policies, arguments = bindings.CapacitySchedulerPolicy, _inside(_SCHEDULER, extra)
    more: dict[str, Any] = {}
    try:
        if _CHUNKS in arguments:
            more[_CHUNKS] = getattr(bindings.ContextChunkingPolicy, arguments[_CHUNKS])
        if tuning := _inside(_TUNING, arguments):
            more[_TUNING] = bindings.DynamicBatchConfig(**tuning)
    except TypeError as error:  # it has no defaults
        raise refused(EXECUTOR.flag, arguments, error) from error
    return bindings.SchedulerConfig(getattr(policies, settings.scheduler_policy.upper()), **more)


def _others(config: Any, extra: Mapping[str, Any]) -> Any:
    """The settings of the configuration itself, and of objects inside that trtla leaves alone."""
    for name, value in extra.items():
        inside, dot, _ = name.partition(".")
        if not dot:
            put(config, name, value, name, EXECUTOR.flag)
        elif inside not in (_CACHE, _SCHEDULER, _PARALLEL):
            # C++ gives copies of what is inside: it is changed, and put back.
            setattr(config, inside, _with(getattr(config, inside), inside, {name: value}))
    return config
