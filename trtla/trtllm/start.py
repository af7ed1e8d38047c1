"""Starts TensorRT-LLM's executor on an engine, after checking that both fit the options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError, first_line, trtllm_cannot
from trtla.runtime.limits import REBUILD_INPUT, REBUILD_LONGER, ExecutorLimits
from trtla.settings.executor import ExecutorOptions, TrtllmSettings
from trtla.settings.lookahead import LookaheadConfig
from trtla.trtllm import library as trtllm_library
from trtla.trtllm.executor import TrtllmExecutor, has_salt
from trtla.trtllm.passed_on import executor_config, executor_extra
from trtla.trtllm.rules import gpu_capability, show

if TYPE_CHECKING:
    from trtla.formats.config import BuildConfig
    from trtla.formats.engine import Engine


def open_trtllm_executor(engine: Engine, options: ExecutorOptions) -> TrtllmExecutor:
    """Start the C++ executor on an engine directory; arguments as in `open_executor`."""
    refuse_torch_choices(engine, options)
    settings, triple = options.trtllm, engine.default_triple(options.triple)
    _check_chunks(engine, settings)
    batch_size = engine.batch_size(options.max_batch_size)
    library = trtllm_library.require_backend()
    _check_release(engine, str(library.version))
    _check_gpu(engine)
    _check_ranks(engine)
    bindings = trtllm_library.load("bindings.executor")
    limits = _limits(engine, triple, batch_size, settings)
    if has_salt(bindings):
        limits = replace(limits, shares_blocks=False)
    description = _describe(engine, str(library.version))
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
    """Raise `UsageError` where something is asked for that only the torch executor can do."""
    own, device, dtype = engine.config.pretrained_config.dtype, options.device, options.dtype
    rebuild = "or build with --backend torch"
    if device != "auto" and not device.startswith("cuda"):
        reason, hint = f"device {device} cannot run it", f"omit --device, {rebuild}"
    elif dtype not in ("auto", own):
        reason, hint = f"it computes in {own}, not in {dtype}", f"omit --dtype, {rebuild}"
    elif options.tp_size is not None:
        ranks = "which has the ranks that it was built for"
        reason = f"{ranks}: tp_size {options.tp_size} is no choice"
        hint = "omit --tp-size, and start its ranks with mpirun"
    elif options.lookahead_parallel is not None:
        reason = f"which shares out no drafts: lookahead_parallel {options.lookahead_parallel}"
        hint = f"omit --lookahead-parallel, {rebuild}"
    elif options.kv_cache_dtype != "auto":
        built = "whose K/V cache is of the type that it was built with"
        reason, hint = f"{built}, not {options.kv_cache_dtype}", f"omit --kv-cache-dtype, {rebuild}"
    elif changed := options.draft_options.changed:
        reason = f"which makes its drafts itself: lookahead {', '.join(changed)} cannot be chosen"
        hint = f"omit --lookahead-..., {rebuild}"
    elif options.block_reuse:
        reason = "whose executor shares K/V blocks itself"
        named = "in Python TrtllmSettings(kv_cache_enable_block_reuse=True)"
        hint = f"use --kv-cache-enable-block-reuse, {named}, instead of block_reuse"
    elif options.bounded_steps:
        reason = "whose executor shares out its steps itself"
        hint = "omit bounded_steps; --enable-chunked-context reads long prompts in pieces"
    else:
        return
    raise trtllm_cannot(engine.name, reason, hint)


def _check_chunks(engine: Engine, settings: TrtllmSettings) -> None:
    """Refuse what corrupts answers: unfinished chunks shift the lengths by which drafts are moved.

    The move runs over all scheduled sequences, the lengths over those that were decoded
    (trtGptModelInflightBatching.cpp, kvCacheUpdateKernels.cu).
    """
    if settings.enable_chunked_context and engine.config.build_config.max_draft_len:
        raise UsageError(
            f"chunked context does not go with lookahead on {engine.name}: TensorRT-LLM would "
            "move the keys and values of other requests by wrong lengths",
            "omit --enable-chunked-context, or build a plain engine with --lookahead 1,1,0",
        )


def _check_release(engine: Engine, installed: str) -> None:
    built = engine.config.version
    if not trtllm_library.same_release(built, installed):
        raise TrtlaError(
            f"{engine.name} was built with TensorRT-LLM {built}, and {installed} is installed",
            "build the engine again here, or install the release that built it",
        )


def _check_gpu(engine: Engine) -> None:
    """Compiled engines run only on the GPU architecture that built them."""
    built, here = engine.manifest and engine.manifest.compute_capability, gpu_capability()
    if built and here and built != show(here):
        raise TrtlaError(
            f"{engine.name} was built for compute capability {built}, and this GPU has "
            f"{show(here)}",
            "build the engine again on this machine",
        )


def _check_ranks(engine: Engine) -> None:
    ranks = engine.config.pretrained_config.mapping.world_size
    processes = int(trtllm_library.load().mpi_world_size())
    if processes != ranks:
        run = f"{processes} process{'es run' if processes > 1 else ' runs'}"
        with_it = f"with mpirun -n {ranks} trtla ..." if ranks > 1 else "without mpirun"
        message = f"{engine.name} has {counted(ranks, 'rank')}, and {run}"
        raise UsageError(message, f"start it {with_it}")


def _limits(
    engine: Engine, triple: LookaheadConfig, batch_size: int, settings: TrtllmSettings
) -> ExecutorLimits:
    """The engine's limits, and those of streaming under other policies than GUARANTEED_NO_EVICT.

    MAX_UTILIZATION may evict and restart a request, whose prompt then is all its text but the last
    token: it must be one that can be read (executorImpl.cpp, fetchNewRequests).
    """
    build = engine.config.build_config
    fewer = executor_extra(settings).get("max_num_tokens") or build.max_num_tokens
    build = build.model_copy(update={"max_num_tokens": min(fewer, build.max_num_tokens)})
    input_len, input_hint = _longest_prompt(build, settings)
    text_len, text_hint = build.max_text_len, REBUILD_LONGER
    if settings.scheduler_policy != "guaranteed_no_evict" and input_len + 1 < text_len:
        text_len = input_len + 1
        text_hint = f"use --scheduler-policy guaranteed_no_evict{_or_chunks(build)}"
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
    """Tokens of the longest prompt beside one of output, and how to have more (trtGptModel.h).

    A prompt is read in one step or in chunks; the engine's max_input_len counts only where it was
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
    """Whether C++ would not switch chunks off, and trtla would not refuse them."""
    plugins = ("context_fmha", "use_paged_context_fmha")
    return not build.max_draft_len and all(map(build.plugin_config.get, plugins))


def _or_chunks(build: BuildConfig) -> str:
    return ", or --enable-chunked-context" if _can_chunk(build) else ""


def _describe(engine: Engine, version: str) -> str:
    config = engine.config.pretrained_config
    ranks = config.mapping.world_size
    shown = f", {ranks} ranks" if ranks > 1 else ""
    return f"TensorRT-LLM {version}, {config.dtype}{shown}"
