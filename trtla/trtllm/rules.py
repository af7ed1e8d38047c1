"""Rules about TensorRT-LLM: the GPUs and models that it can build and run with lookahead.

The rules are read from its attention kernels (attentionOp.cpp, decoderMaskedMultiheadAttention,
xqaDispatcher.cpp) as releases 0.20 to 1.2 have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from trtla.errors import UsageError, is_installed
from trtla.formats.config import WEIGHT_ONLY, CheckpointConfig
from trtla.formats.engine_config import BuildConfig
from trtla.formats.engine_limits import stage_problems
from trtla.formats.families import BY_ARCHITECTURE, spelled
from trtla.formats.plan import block_names, linear_sizes
from trtla.machine import Capability
from trtla.trtllm.library import installed, known_trouble, load

MIN_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
HEAD_SIZES = (64, 128)
"""Head sizes with compiled kernels."""
JIT_MULTIPLE, JIT_LARGEST = 16, 256
"""Other head sizes, if the release compiles kernels at run time."""
MAX_QUERY_GROUP = 32
"""Query heads for one K/V head."""
DTYPES = ("float16", "bfloat16")

_NO_GPU = "there is no GPU here: whether one can build and run this is not checked"
_NEWEST_SEEN = (9, 0)
_XQA = '"No available XQA kernels are found for speculative decoding mode"'
_TORCH = "use --backend torch"
_PLAIN = (
    "convert the unquantised model with --dtype w4a16_awq, w4a16 or w8a16, dequantise with --dtype "
    "bfloat16 or float16"
)
_ROPE = {
    "yarn": "rope scaling yarn is not built with TensorRT-LLM: how long its table is there, and by "
    "what it is multiplied, is not verified",
    "longrope": "rope scaling longrope is not built with TensorRT-LLM: when it changes its factors "
    "there is not verified",
    "dynamic": "rope scaling dynamic cannot be built with TensorRT-LLM: from 1.1 on it is another "
    "formula there, which reads a key alpha",
}
_JIT = (
    "TensorRT-LLM compiles kernels for it only on Hopper with an FP8 K/V cache, or in late releases"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer whether something can run."""

    allowed: bool | None
    """None: not verified."""
    reason: str = ""


_YES = Verdict(True)


def _no(reason: str) -> Verdict:
    return Verdict(False, reason)


def lookahead_on(capability: Capability | None) -> Verdict:
    """Judge lookahead decoding in TensorRT-LLM on a GPU."""
    if capability is None:
        return Verdict(None, "its compute capability is unknown")
    shown = show(capability)
    if capability < MIN_CAPABILITY:
        return _no(f"compute capability {shown} is below {show(MIN_CAPABILITY)}")
    if capability[0] == 10:
        blackwell = "Blackwell, which has no kernels for speculative decoding"
        return _no(f"compute capability {shown} is {blackwell}")
    if capability > _NEWEST_SEEN:
        return Verdict(None, f"compute capability {shown}: NVIDIA skips its lookahead test there")
    return _YES


def fp8_on(capability: Capability | None) -> bool | None:
    """Return True if TensorRT-LLM has FP8 weights or K/V cache on a GPU; None if unknown."""
    return None if capability is None else capability >= FP8_CAPABILITY


def head_size(size: int) -> Verdict:
    """Judge a model's head size."""
    if size in HEAD_SIZES:
        return _YES
    if size % JIT_MULTIPLE == 0 and size <= JIT_LARGEST:
        return Verdict(None, f"head_size {size}: {_JIT}")
    have = " and ".join(map(str, HEAD_SIZES))
    return _no(f"head_size {size} has no kernel; {have} have")


def query_group(heads: int, kv_heads: int) -> Verdict:
    """Judge a model's query heads for one K/V head."""
    if heads <= kv_heads * MAX_QUERY_GROUP:
        return _YES
    return _no(
        f"{heads} query heads on {kv_heads} K/V heads are more than {MAX_QUERY_GROUP} for each",
    )


def activations(dtype: str) -> Verdict:
    """Judge a model's dtype."""
    if dtype in DTYPES:
        return _YES
    return _no(f"dtype is {dtype}, its kernels take {' and '.join(DTYPES)}")


def rope_scaling(kind: str) -> Verdict:
    """Judge a model's rotary scaling, also for plain engines (functional.py)."""
    reason = _ROPE.get(kind)
    return _no(reason) if reason else _YES


def family(config: CheckpointConfig) -> Verdict:
    """A model's family, also for plain engines."""
    if BY_ARCHITECTURE[spelled(config.architecture)].trtllm:
        return _YES
    return _no(
        f"it is not known to run {config.architecture} with lookahead decoding, "
        "which trtla's own executor does"
    )


def weight_types(config: CheckpointConfig) -> Verdict:
    """Judge a model's quantised weights, also for plain engines."""
    if not config.block_types:
        return _YES
    names = block_names(config)
    return _no(f"weights are in blocks ({names}), which TensorRT-LLM cannot read")


def weight_only_sizes(config: CheckpointConfig) -> Verdict:
    """Judge a model's sizes for integer weights, which the layers would pad
    (quantization/layers.py)."""
    algorithm = config.quantization.quant_algo
    if algorithm not in WEIGHT_ONLY:
        return _YES
    multiple, ranks = max(64, config.awq_group_size or 0), config.mapping.tp_size
    for name, sizes in linear_sizes(config).items():
        # Both sizes of the whole layer, split or not, are padded to multiples for every rank.
        split = 1 if name in ("attention.dense", "mlp.proj") else 0
        whole = [size * (ranks if axis == split else 1) for axis, size in enumerate(sizes)]
        for size, side in zip(whole, ("outputs", "inputs"), strict=True):
            if size % (multiple * ranks):
                reason = f"the {size} {side} of {name} are no multiple of {multiple * ranks}"
                return _no(f"{reason}, which {algorithm} needs with tp_size {ranks}")
    return _YES


def weight_only_on(config: CheckpointConfig, capability: Capability | None) -> Verdict:
    """Judge integer weights on a GPU; builder.py refuses them on data center Blackwell."""
    algorithm = config.quantization.quant_algo
    if algorithm not in WEIGHT_ONLY or capability is None:
        return _YES
    if capability[0] in (10, 11):
        return _no(f"compute capability {show(capability)} has no kernels for {algorithm} weights")
    right = algorithm != "W4A16_AWQ" or capability[0] != 12 or order_is_right(capability)
    if right:
        return _YES
    shown = f"compute capability {show(capability)}"
    if right is None:
        return Verdict(None, f"whether W4A16_AWQ weights are ordered rightly for {shown}")
    return _no(
        f"this TensorRT-LLM orders W4A16_AWQ weights for {shown} otherwise than "
        "its kernels read them: its texts would be wrong",
    )


@cache
def order_is_right(capability: Capability) -> bool | None:
    """Return True if the installed release orders int4 weights for a GPU as for 8.0.

    Kernels of compute capability 12.x read that order. Some releases order weights of two
    dimensions by the capability itself (quantization/functional.py), which silently gives wrong
    results. The function runs on the CPU, so it is called to see. None: it cannot be called.
    """
    if not installed():
        return None
    import torch

    generator = torch.Generator().manual_seed(0)
    sizes = (128, 64)  # inputs, and bytes of outputs: whole tiles of every order
    weights = torch.randint(-128, 128, sizes, dtype=torch.int8, generator=generator)
    major, minor = capability
    try:
        ordered = load("quantization.functional").preprocess_weights_for_mixed_gemm
        here, read = (
            ordered(weights.clone(), torch.quint4x2, torch.float16, sm_=sm)
            for sm in (10 * major + minor, 80)
        )
    except Exception:  # releases without the function or its argument, or a broken library
        return None
    return torch.equal(here, read)


def show(capability: Capability) -> str:
    """Format as in `9.0`."""
    return f"{capability[0]}.{capability[1]}"


def gpu_capability() -> Capability | None:
    """Return the compute capability of the first GPU that PyTorch can use; None without one."""
    if not is_installed("torch"):
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return major, minor


def check_trtllm(
    config: CheckpointConfig,
    limits: BuildConfig,
    capability: Capability | None,
    release: str | None = None,
) -> tuple[str, ...]:
    """Refuse an engine that TensorRT-LLM cannot build or start; return unverified points.

    `config` has the dtype of the engine; without GPU (a dry run) or library there is no
    `capability` or `release`.
    """
    notes = [] if capability else [_NO_GPU]
    _check_gpu(config, capability)
    check_family(config)
    _allow(weight_types(config), f"{_PLAIN}, or {_TORCH}")
    notes += _check_weight_only(config, capability)
    _allow(rope_scaling(config.rope_type), _TORCH)
    for problem in stage_problems(config, lookahead=limits.max_draft_len > 0):
        raise problem
    if limits.max_draft_len:
        notes += _check_lookahead(config, capability)
        notes += filter(None, [known_trouble(release)])
    return (*notes, *_quantisation_notes(config))


def check_family(config: CheckpointConfig) -> None:
    """Refuse to make anything for TensorRT-LLM of a family that it is not known to run."""
    hint = "give the folder or GGUF file itself to trtla run, or to trtla build --backend torch"
    _allow(family(config), hint, "TensorRT-LLM cannot run the model: ")


def _check_gpu(config: CheckpointConfig, capability: Capability | None) -> None:
    if capability is None:
        return
    if capability < MIN_CAPABILITY:
        raise UsageError(
            f"compute capability {show(capability)} is below "
            f"{show(MIN_CAPABILITY)}, which TensorRT-LLM needs",
            _TORCH,
        )
    if (config.fp8 or config.fp8_kv_cache) and not fp8_on(capability):
        raise UsageError(
            f"the checkpoint is FP8, and compute capability {show(capability)} is below "
            f"{show(FP8_CAPABILITY)}",
            "build it on an Ada or Hopper GPU, or convert the model without FP8",
        )


def _check_weight_only(config: CheckpointConfig, capability: Capability | None) -> Iterator[str]:
    algorithm = config.quantization.quant_algo
    if algorithm not in WEIGHT_ONLY:
        return
    _allow(activations(config.dtype), "add --dtype float16 or bfloat16", f"{algorithm}: ")
    for verdict in (weight_only_sizes(config), weight_only_on(config, capability)):
        _allow(verdict, f"convert the model with another --dtype, or {_TORCH}")
        if verdict.allowed is None:
            yield f"not verified: {verdict.reason}"


def _check_lookahead(config: CheckpointConfig, capability: Capability | None) -> Iterator[str]:
    start, plain = "TensorRT-LLM cannot run lookahead here: ", f"build a plain engine, or {_TORCH}"
    group = query_group(config.num_attention_heads, config.num_key_value_heads)
    size = head_size(config.head_size)
    _allow(activations(config.dtype), f"add --dtype float16 or bfloat16, or {_TORCH}", start)
    _allow(group, plain, start)
    _allow(size, plain, start)
    if size.allowed is None:
        yield f"{size.reason}; where they are missing it ends with {_XQA}"
    gpu = _YES if capability is None else lookahead_on(capability)
    _allow(gpu, f"build on an Ampere, Ada or Hopper GPU, or {_TORCH}", start)
    if gpu.allowed is None:
        yield f"lookahead is not verified on this GPU: {gpu.reason}"


def _allow(verdict: Verdict, hint: str, start: str = "") -> None:
    if verdict.allowed is False:
        raise UsageError(f"{start}{verdict.reason}", hint)


def _quantisation_notes(config: CheckpointConfig) -> Iterator[str]:
    """Yield notes on rounding and on features that `build()` switches off by itself."""
    if config.rounded_when_built:
        bits = WEIGHT_ONLY[config.quantization.quant_algo or ""]
        yield f"TensorRT-LLM rounds the linear weights to int{bits} as it loads them"
    if config.fp8 and not config.fp8_kv_cache:
        yield "build() switches FP8 context FMHA off, because the K/V cache is not FP8"
    if config.fp8_kv_cache and not config.fp8:
        yield (
            "build() switches paged-context FMHA off, and with it the reuse of K/V blocks: "
            "the K/V cache is FP8 and the weights are not"
        )
