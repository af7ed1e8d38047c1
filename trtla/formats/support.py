"""What trtla can convert and run: architectures, activation, rotary scalings, quantisations.

One check for Hugging Face models, checkpoints and engines, so that all three refuse the same
things.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from trtla.errors import UsageError
from trtla.formats.config import BLOCK_SIZES, QWEN2, ROPE_TYPES, CheckpointConfig
from trtla.formats.plan import fp8_linears, hf_shapes

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", QWEN2)
FAMILIES = f"{', '.join(ARCHITECTURES[:-1])} and {ARCHITECTURES[-1]}"
"""For sentences."""

_SCALING_KEYS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


def check_supported(config: CheckpointConfig, where: str) -> None:
    """Refuse what trtla has no rule for.

    Raises:
        UsageError: the value at fault, prefixed with `where`.
    """
    if config.architecture.replace("LLaMA", "Llama") not in ARCHITECTURES:
        raise UsageError(
            f"{where}: architecture {config.architecture} is not supported",
            f"trtla runs {FAMILIES}",
        )
    if config.hidden_act != "silu":
        raise UsageError(
            f"{where}: hidden_act {config.hidden_act} is not supported", "trtla runs silu models"
        )
    if config.position_embedding_type != "rope_gpt_neox":
        raise UsageError(
            f"{where}: position_embedding_type {config.position_embedding_type} is not supported",
            "trtla runs rope_gpt_neox models",
        )
    _check_quantization(config, where)
    _check_rope(config, where)


def _check_quantization(config: CheckpointConfig, where: str) -> None:
    quantization = config.quantization
    for key in ("quant_algo", "kv_cache_quant_algo"):
        value = getattr(quantization, key)
        if value not in (None, "FP8"):
            raise UsageError(
                f"{where}: {key} {value} is not supported",
                "trtla runs FP8 and unquantised models; convert the unquantised one",
            )
    if config.fp8 and quantization.exclude_modules is not None:
        _check_excluded(quantization.exclude_modules, config, where)
    if config.block_types:
        _check_blocks(config, where)


def _check_blocks(config: CheckpointConfig, where: str) -> None:
    """Refuse blocks of what is no weight of the model, or that do not divide its inputs."""
    hint = "make it again with trtla convert"
    if config.fp8:
        raise UsageError(f"{where}: weights are in blocks and in FP8", hint)
    shapes = hf_shapes(config)
    for name, kind in config.block_types.items():
        shape, inputs = shapes.get(name, ()), BLOCK_SIZES[kind][0]
        if len(shape) != 2:
            raise UsageError(f"{where}: {name} in block_types is no weight of the model", hint)
        if shape[1] % inputs:
            raise UsageError(
                f"{where}: the {shape[1]} inputs of {name} are no multiple of {inputs}, the inputs "
                f"of a block of {kind}",
                hint,
            )


def _check_excluded(patterns: Sequence[str], config: CheckpointConfig, where: str) -> None:
    """Refuse layers that are FP8 in part; patterns match as in TensorRT-LLM's quantize.py."""
    linears = fp8_linears(config)
    excluded = next((n for p in patterns for n in linears if fnmatchcase(n, p)), None)
    if excluded is not None:
        raise UsageError(
            f"{where}: exclude_modules leaves {excluded} unquantised, which is not supported",
            "quantise all linears of the layers, see trtla convert --dtype fp8",
        )


def _check_rope(config: CheckpointConfig, where: str) -> None:
    scaling, kind = config.rotary_scaling or {}, config.rope_type
    if kind not in ROPE_TYPES:
        raise UsageError(
            f"{where}: rope scaling {kind} is not supported", f"trtla runs {', '.join(ROPE_TYPES)}"
        )
    partial = scaling.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise UsageError(
            f"{where}: partial_rotary_factor {partial} is not supported",
            "trtla runs models that rotate whole heads",
        )
    for key in _SCALING_KEYS.get(kind, ()):
        value = scaling.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise UsageError(
                f'{where}: rope scaling {kind} has "{key}" {value!r}', "give a number above 0"
            )
