"""What TensorRT-LLM can build, and what it cannot or may not: refused or told beforehand.

The rules for kernels are in trtla.kernels, those for FP8 are of builder.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtla import kernels
from trtla.build.compiled import stage_problems
from trtla.config import BuildConfig, CheckpointConfig
from trtla.errors import UsageError
from trtla.kernels import Capability, Verdict
from trtla.trtllm_library import known_trouble

_XQA = '"No available XQA kernels are found for speculative decoding mode"'
_TORCH = "use --backend torch"


def check_trtllm(
    config: CheckpointConfig,
    limits: BuildConfig,
    capability: Capability | None,
    release: str | None = None,
) -> tuple[str, ...]:
    """Refuse an engine that TensorRT-LLM cannot build or start; what is not verified is told.

    Args:
        config: the checkpoint's config with the dtype of the engine.
        limits: the engine's.
        capability: the GPU's that builds; None where there is none, e.g. on a dry run.
        release: of TensorRT-LLM, which builds; None where none is installed.

    Raises:
        UsageError: dtype, head sizes, rope scaling, pipeline stages or the GPU do not allow it.
    """
    notes = (
        []
        if capability
        else ["there is no GPU here: whether one can build and run this is not checked"]
    )
    _check_gpu(config, capability)
    rope = kernels.rope_scaling(config.rope_type)
    if rope.allowed is False:
        raise UsageError(rope.reason, _TORCH)
    for problem in stage_problems(config, lookahead=limits.max_draft_len > 0):
        raise problem
    if limits.max_draft_len:
        notes += _check_lookahead(config, capability)
        notes += filter(None, [known_trouble(release)])
    return (*notes, *_fp8_notes(config))


def _check_gpu(config: CheckpointConfig, capability: Capability | None) -> None:
    if capability is None:
        return
    if capability < kernels.MIN_CAPABILITY:
        raise UsageError(
            f"compute capability {kernels.show(capability)} is below "
            f"{kernels.show(kernels.MIN_CAPABILITY)}, which TensorRT-LLM needs",
            _TORCH,
        )
    if (config.fp8 or config.fp8_kv_cache) and not kernels.fp8_on(capability):
        raise UsageError(
            f"the checkpoint is FP8, and compute capability {kernels.show(capability)} is below "
            f"{kernels.show(kernels.FP8_CAPABILITY)}",
            "build it on an Ada or Hopper GPU, or convert the model without FP8",
        )


def _check_lookahead(config: CheckpointConfig, capability: Capability | None) -> Iterator[str]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    _allow(kernels.activations(config.dtype), f"add --dtype float16 or bfloat16, or {_TORCH}")
    _allow(kernels.query_group(heads, kv_heads), f"build a plain engine, or {_TORCH}")
    size = kernels.head_size(config.head_size)
    _allow(size, f"build a plain engine, or {_TORCH}")
    if size.allowed is None:
        yield f"{size.reason}; where they are missing it ends with {_XQA}"
    gpu = Verdict(True) if capability is None else kernels.lookahead_on(capability)
    _allow(gpu, f"build on an Ampere, Ada or Hopper GPU, or {_TORCH}")
    if gpu.allowed is None:
        yield f"lookahead is not verified on this GPU: {gpu.reason}"


def _allow(verdict: Verdict, hint: str) -> None:
    if verdict.allowed is False:
        raise UsageError(f"TensorRT-LLM cannot run lookahead here: {verdict.reason}", hint)


def _fp8_notes(config: CheckpointConfig) -> Iterator[str]:
    """What `build()` switches off by itself."""
    if config.fp8 and not config.fp8_kv_cache:
        yield "build() switches FP8 context FMHA off, because the K/V cache is not FP8"
    if config.fp8_kv_cache and not config.fp8:
        yield (
            "build() switches paged-context FMHA off, and with it the reuse of K/V blocks: "
            "the K/V cache is FP8 and the weights are not"
        )
