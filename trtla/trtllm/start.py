"""Starting TensorRT-LLM's executor on an engine: checks of engine and options, and its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError, first_line, named, trtllm_cannot
from trtla.runtime.lengths import text_lengths
from trtla.runtime.limits import REBUILD_INPUT, REBUILD_LONGER, ExecutorLimits
from trtla.settings.executor import ExecutorOptions, TrtllmSettings
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.trtllm_fields import EXECUTOR, Kinds, read
from trtla.trtllm.executor import TrtllmExecutor, has_salt
from trtla.trtllm.library import (
    installed,
    load,
    plain_fields,
    put,
    refused,
    require_backend,
    same_release,
)
from trtla.trtllm.rules import gpu_capability, show

if TYPE_CHECKING:
    from trtla.formats.engine import Engine
    from trtla.formats.engine_config import BuildConfig

_REBUILD = "or build with --backend torch"
_CHECKED = (
    *("device", "dtype", "threads", "max_seq_len", "lookahead", "parse_special", "tokenizer_dir"),
    *("max_batch_size", "drafter", "draft_models", "draft_device", "draft_dtype", "corpus"),
    *("chat_template", "chat_template_kwargs", "trtllm", "find_head"),
)
"""Options of such an engine, or with checks that refuse them elsewhere."""
_REASONS = {
    "tp_size": (
        "which has the ranks that it was built for: tp_size {value} is no choice",
        f"omit {named('tp_size')}, and start its ranks with mpirun",
    ),
    "lookahead_parallel": ("which shares out no drafts: lookahead_parallel {value}", ""),
    "kv_cache_dtype": ("whose K/V cache is of the type that it was built with, not {value}", ""),
    "draft_options": (
        "which makes its drafts itself: lookahead {changed} cannot be chosen",
        f"omit {named('lookahead_')}..., {_REBUILD}",
    ),
    "block_reuse": (
        "whose executor shares K/V blocks itself",
        f"use {named('kv_cache_enable_block_reuse')}, in Python "
        "TrtllmSettings(kv_cache_enable_block_reuse=True), instead of block_reuse",
    ),
    "bounded_steps": (
        "whose executor shares out its steps itself",
        f"omit bounded_steps; {named('enable_chunked_context')} reads long prompts in pieces",
    ),
}
"""Reasons why it lacks other options, and hints; empty: omit the option."""
_NESTED = ("kv_cache_config", "extended_runtime_perf_knob_config", "peft_cache_config")
_CACHE, _SCHEDULER, _PARALLEL = "kv_cache_config", "scheduler_config", "parallel_config"
_TUNING, _CHUNKS = "dynamic_batch_config", "context_chunking_policy"
_FAIL_FAST = "fail_fast_on_attention_window_too_large"


def open_trtllm_executor(engine: Engine, options: ExecutorOptions) -> TrtllmExecutor:
    """Start the C++ executor on an engine directory; arguments as in `open_executor`."""
    refuse_torch_choices(engine, options)
    settings, triple = options.trtllm, engine.default_triple(options.triple)
    _check_chunks(engine, settings)
    batch_size = engine.batch_size(options.max_batch_size)
    library = require_backend()
    check_release_and_gpu(engine, str(library.version))
    _check_ranks(engine)
    bindings = load("bindings.executor")
    limits = _limits(engine, triple, batch_size, options)
    if has_salt(bindings):
        limits = replace(limits, shares_blocks=False)
    model = engine.config.pretrained_config
    ranks = f", {model.mapping.world_size} ranks" if model.mapping.world_size > 1 else ""
    description = f"TensorRT-LLM {library.version}, {model.dtype}{ranks}"
    config = executor_config(bindings, triple, batch_size, settings)
    try:
        executor = bindings.Executor(engine.path, bindings.ModelType.DECODER_ONLY, config)
    except (RuntimeError, ValueError, MemoryError) as error:
        raise TrtlaError(
            f"TensorRT-LLM cannot start {engine.name}: {first_line(error)}",
            "run trtla doctor with this engine; it must be built on this kind of GPU with this "
            "release, and its weights and one text of max_seq_len tokens must fit the free memory",
        ) from error
    return TrtllmExecutor(bindings, executor, limits, description)


def refuse_torch_choices(engine: Engine, options: ExecutorOptions) -> None:
    """Raise `UsageError` for an option that only the torch executor has."""
    compiled, device, dtype = engine.config.pretrained_config.dtype, options.device, options.dtype
    if device != "auto" and not device.startswith("cuda"):
        hint = f"omit {named('device')}, {_REBUILD}"
        raise trtllm_cannot(engine.name, f"device {device} cannot run it", hint)
    if dtype not in ("auto", compiled):
        hint = f"omit {named('dtype')}, {_REBUILD}"
        raise trtllm_cannot(engine.name, f"it computes in {compiled}, not in {dtype}", hint)
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name not in _CHECKED and value != option.default:
            flag = named(option.name)
            usual = f"which has no {option.name}", f"omit {flag}, {_REBUILD}"
            reason, hint = _REASONS.get(option.name, usual)
            changed = ", ".join(options.draft_options.changed)
            reason = reason.format(value=value, changed=changed)
            raise trtllm_cannot(engine.name, reason, hint or f"omit {flag}, {_REBUILD}")


def _check_chunks(engine: Engine, settings: TrtllmSettings) -> None:
    """Refuse chunks that corrupt answers: unfinished ones shift the lengths by which drafts move.

    The move runs over all scheduled sequences, the lengths over decoded ones
    (trtGptModelInflightBatching.cpp, kvCacheUpdateKernels.cu).
    """
    if settings.enable_chunked_context and engine.config.build_config.max_draft_len:
        raise UsageError(
            f"chunked context does not go with lookahead on {engine.name}: TensorRT-LLM would "
            "move the keys and values of other requests by wrong lengths",
            f"omit {named('enable_chunked_context')}, or build a plain engine with --lookahead "
            "1,1,0",
        )


def check_release_and_gpu(engine: Engine, installed: str) -> None:
    """Check release and GPU: compiled engines run only on those that built them."""
    built = engine.config.version
    if not same_release(built, installed):
        raise TrtlaError(
            f"{engine.name} was built with TensorRT-LLM {built}, and {installed} is installed",
            "build the engine again here, or install the release that built it",
        )
    gpu, here = engine.manifest and engine.manifest.compute_capability, gpu_capability()
    if gpu and here and gpu != show(here):
        raise TrtlaError(
            f"{engine.name} was built for compute capability {gpu}, and this GPU has {show(here)}",
            "build the engine again on this machine",
        )


def _check_ranks(engine: Engine) -> None:
    ranks = engine.config.pretrained_config.mapping.world_size
    processes = int(load().mpi_world_size())
    if processes != ranks:
        run = f"{processes} process{'es run' if processes > 1 else ' runs'}"
        with_it = f"with mpirun -n {ranks} trtla ..." if ranks > 1 else "without mpirun"
        message = f"{engine.name} has {counted(ranks, 'rank')}, and {run}"
        raise UsageError(message, f"start it {with_it}")


def _limits(
    engine: Engine, triple: LookaheadConfig, batch_size: int, options: ExecutorOptions
) -> ExecutorLimits:
    """Return the engine's limits, reduced for streaming under policies that may evict.

    MAX_UTILIZATION may evict and restart a request, whose prompt is then all its text except the
    last token: that must be a readable prompt (executorImpl.cpp, fetchNewRequests).
    """
    build, settings = engine.config.build_config, options.trtllm
    lengths = text_lengths(engine, options.max_seq_len)
    fewer = executor_extra(settings).get("max_num_tokens") or build.max_num_tokens
    build = build.model_copy(update={"max_num_tokens": min(fewer, build.max_num_tokens)})
    input_len, input_hint = _longest_prompt(build, settings)
    text_len, text_hint = lengths.max_text_len, lengths.text_len_hint
    if input_len >= text_len:
        input_len, input_hint = text_len - 1, text_hint
    if settings.scheduler_policy != "guaranteed_no_evict" and input_len + 1 < text_len:
        text_len = input_len + 1
        text_hint = f"use {named('scheduler_policy')} guaranteed_no_evict{_or_chunks(build)}"
    return ExecutorLimits(
        batch_size,
        input_len,
        text_len,
        build.max_num_tokens,
        engine.config.pretrained_config.vocab_size,
        triple,
        greedy_only=triple.max_draft_len > 0,
        fixed_triples=True,
        input_len_hint=input_hint,
        text_len_hint=text_hint,
        shares_blocks=settings.kv_cache_enable_block_reuse,
    )


def _longest_prompt(build: BuildConfig, settings: TrtllmSettings) -> tuple[int, str]:
    """Return the longest prompt with one output token, and how to extend it (trtGptModel.h).

    A prompt is read in one step or in chunks; the engine's max_input_len only counts if it was
    built without context FMHA.
    """
    longest = build.max_text_len - 1
    if settings.enable_chunked_context and _can_chunk(build):
        return longest, REBUILD_LONGER
    if not build.plugin_config.get("context_fmha"):
        return min(longest, build.max_input_len), REBUILD_INPUT
    if build.max_num_tokens < longest:
        return build.max_num_tokens, f"rebuild with a larger --max-num-tokens{_or_chunks(build)}"
    return longest, REBUILD_LONGER


def _can_chunk(build: BuildConfig) -> bool:
    """Return True if C++ would keep chunks on, and trtla would not refuse them."""
    plugins = ("context_fmha", "use_paged_context_fmha")
    return not build.max_draft_len and all(map(build.plugin_config.get, plugins))


def _or_chunks(build: BuildConfig) -> str:
    return f", or {named('enable_chunked_context')}" if _can_chunk(build) else ""


def executor_extra(settings: TrtllmSettings) -> dict[str, Any]:
    """Read and check the fields in --trtllm-executor."""
    return read(EXECUTOR, settings.trtllm_executor, _executor_kinds)


def _executor_kinds() -> Kinds:
    """Return the fields of ExecutorConfig and of its nested objects; empty without the library."""
    if not installed():
        return {}
    config = load("bindings.executor").ExecutorConfig()
    kinds = dict(plain_fields(config))
    for name in _NESTED:
        kinds |= dict(plain_fields(getattr(config, name, None), f"{name}."))
    return kinds


def executor_config(
    bindings: Any, triple: LookaheadConfig, max_batch_size: int, settings: TrtllmSettings
) -> Any:
    """Create the library's ExecutorConfig; every default that changed between releases is set."""
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
        # Else a K/V cache without room for max_seq_len only warns, and shortens prompts and texts.
        setattr(config, _FAIL_FAST, True)
    if triple.max_draft_len:  # a plain engine does not start with any triple, e.g. (1,2,0)
        decoding = bindings.DecodingConfig()
        # The setter also sets the mode; setting the mode itself throws (decodingConfig.cpp).
        decoding.lookahead_decoding_config = bindings.LookaheadDecodingConfig(*triple.as_tuple())
        config.decoding_config = decoding
    parallel = bindings.ParallelConfig(
        bindings.CommunicationType.MPI, bindings.CommunicationMode.LEADER
    )
    config.parallel_config = _with(parallel, _PARALLEL, extra)
    return _others(config, extra)


def _inside(name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one nested object, by the rest of their names."""
    start = f"{name}."
    return {key[len(start) :]: value for key, value in extra.items() if key.startswith(start)}


def _with(config: Any, name: str, extra: Mapping[str, Any]) -> Any:
    for key, value in _inside(name, extra).items():
        put(config, key, value, f"{name}.{key}", EXECUTOR.flag)
    return config


def _scheduler(bindings: Any, settings: TrtllmSettings, extra: Mapping[str, Any]) -> Any:
    """Create the scheduler's config through its constructor: its properties are read-only."""
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
    """Set the fields of the configuration itself, and of nested objects without code here."""
    for name, value in extra.items():
        inside, dot, _ = name.partition(".")
        if not dot:
            put(config, name, value, name, EXECUTOR.flag)
        elif inside not in (_CACHE, _SCHEDULER, _PARALLEL):
            # C++ returns copies of nested objects: change one, and assign it.
            setattr(config, inside, _with(getattr(config, inside), inside, {name: value}))
    return config
