"""Checks of models that trtla converts and runs: architectures, scalings, quantisations, ranks.

The same ones for Hugging Face models, checkpoints and engines, so that all three are refused alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from trtla.errors import UsageError, named
from trtla.formats.config import (
    AWQ_GROUP_SIZES,
    BLOCK_SIZES,
    DTYPE_BYTES,
    ROPE_TYPES,
    WEIGHT_ONLY,
    CheckpointConfig,
    Mapping,
)
from trtla.formats.families import ARCHITECTURES, BY_ARCHITECTURE, FAMILIES, spelled
from trtla.formats.plan import block_names, fp8_linears, linear_sizes, single_rank
from trtla.formats.rope_scaling import is_positive
from trtla.formats.shapes import hf_shapes

_KINDS = {
    "hidden_act": ("silu", "gelu_pytorch_tanh"),
    "position_embedding_type": ("rope_gpt_neox",),
}
_SPLIT_BY_INPUTS = ("o_proj.weight", "down_proj.weight")
_SCALING_KEYS = {
    **dict.fromkeys(("linear", "dynamic", "yarn"), ("factor",)),
    "longrope": ("original_max_position_embeddings", "attention_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_OPTIONAL_KEYS = {
    "longrope": ("factor",),
    "yarn": (
        *("original_max_position_embeddings", "attention_factor"),
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    ),
}
"""They have defaults."""


def check_supported(config: CheckpointConfig, where: str) -> None:
    """Refuse models that trtla has no rules for."""
    if spelled(config.architecture) not in ARCHITECTURES:
        name = config.architecture
        raise _unsupported(f"{where}: architecture {name}", f"trtla runs {FAMILIES}")
    for key, known in _KINDS.items():
        if (value := getattr(config, key)) not in known:
            hint = f"trtla runs {' and '.join(known)} models"
            raise _unsupported(f"{where}: {key} {value}", hint)
    _check_quantization(config, where)
    check_experts(config, where)
    _check_rope(config, where)


def _unsupported(feature: str, hint: str) -> UsageError:
    return UsageError(f"{feature} is not supported", hint)


def check_mapping(config: CheckpointConfig) -> None:
    """Refuse a tp_size or pp_size that TensorRT-LLM could not load: equal chunks, no lost layer."""
    tp, pp = config.mapping.tp_size, config.mapping.pp_size
    if config.block_types and config.mapping.world_size > 1:
        raise UsageError(
            f"weights in blocks ({block_names(config)}) are not split, and tp_size is {tp}, "
            f"pp_size {pp}",
            f"omit {named('tp_size')} and {named('pp_size')}{_or_plain(config)}",
        )
    check_tp_size(config)
    if config.num_hidden_layers % pp:
        raise UsageError(
            f"pp_size {pp} does not divide num_hidden_layers {config.num_hidden_layers}",
            f"use a {named('pp_size')} that divides {config.num_hidden_layers}",
        )


def _or_plain(config: CheckpointConfig) -> str:
    """The way around blocks, which mixtures lack: nothing converts them."""
    return "" if config.num_experts else ", or convert with --dtype bfloat16 or float16"


def check_tp_size(config: CheckpointConfig) -> None:
    """Refuse a tp_size that does not divide heads and intermediate size, or parts heads that are
    normalised together."""
    tp, kv = config.mapping.tp_size, config.num_key_value_heads
    if tp > 1 and config.qk_norm_all_heads:
        raise UsageError(
            f"tp_size {tp} splits the heads that a {config.architecture} normalises together",
            f"omit {named('tp_size')}",
        )
    sizes = ["num_attention_heads", "intermediate_size"]
    if config.num_experts:
        sizes += ["moe_intermediate_size", "shared_intermediate_size"]
    if config.use_parallel_embedding and config.embedding_sharding_dim == 1:
        sizes.append("hidden_size")
    for key in sizes:
        if (value := getattr(config, key)) % tp:
            raise UsageError(
                f"tp_size {tp} does not divide {key} {value}",
                f"use a {named('tp_size')} that divides {value}",
            )
    if kv % tp and tp % kv:
        raise UsageError(
            f"tp_size {tp} neither divides num_key_value_heads {kv} nor is a multiple of it",
            f"use a {named('tp_size')} that divides {kv} or that {kv} divides",
        )


def _check_quantization(config: CheckpointConfig, where: str) -> None:
    quantization = config.quantization
    kinds = {"quant_algo": ("FP8", *WEIGHT_ONLY), "kv_cache_quant_algo": ("FP8",)}
    for key, known in kinds.items():
        if (value := getattr(quantization, key)) not in (None, *known):
            hint = f"trtla runs {', '.join(known)} and unquantised models"
            raise _unsupported(f"{where}: {key} {value}", f"{hint}; convert the unquantised one")
    if config.awq_group_size:
        _check_awq(config, config.awq_group_size, where)
    if config.fp8 or config.awq_group_size:
        _check_excluded(quantization.exclude_modules or (), config, where)
    if config.block_types:
        _check_blocks(config, where)


def check_experts(config: CheckpointConfig, where: str) -> None:
    """Refuse experts whose weights are quantised in other ways than in blocks, and a family of
    mixtures that has none, as TensorRT-LLM's own checkpoints name them otherwise."""
    family = BY_ARCHITECTURE.get(spelled(config.architecture))
    if family is not None and family.experts is not None and not config.num_experts:
        raise _unsupported(
            f"{where}: {family.architecture} without experts", "give the Hugging Face model itself"
        )
    algorithm = config.quantization.quant_algo
    if config.num_experts and algorithm:
        raise _unsupported(
            f"{where}: {algorithm} in a mixture of experts",
            "use float16, bfloat16, or the blocks of a GGUF file",
        )


def _check_awq(config: CheckpointConfig, group_size: int, where: str) -> None:
    """Refuse W4A16_AWQ as only other programs make it."""
    if config.quantization.has_zero_point:
        raise _unsupported(
            f"{where}: W4A16_AWQ with has_zero_point",
            "make it with trtla convert --dtype w4a16_awq, or with modelopt",
        )
    sizes = ", ".join(map(str, AWQ_GROUP_SIZES))
    if group_size not in AWQ_GROUP_SIZES:
        raise _unsupported(f"{where}: group_size {group_size}", f"use {sizes}")
    for name, (_, inputs) in linear_sizes(config).items():
        if inputs % group_size:
            raise UsageError(
                f"{where}: W4A16_AWQ's group_size {group_size} does not divide the {inputs} "
                f"inputs that {name} has on a rank",
                "use a smaller group size or fewer ranks",
            )


def _check_blocks(config: CheckpointConfig, where: str) -> None:
    """Refuse blocks of names that are no weight of the model, or that do not divide its inputs."""
    hint, algorithm = "make it again with trtla convert", config.quantization.quant_algo
    if algorithm:
        raise UsageError(f"{where}: weights are in blocks and in {algorithm}", hint)
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
    _check_alike(config.block_types, shapes, where, hint)


def _check_alike(kinds: dict[str, str], names: Iterable[str], where: str, hint: str) -> None:
    """Refuse experts of a layer that are stored in different types, as they share their inputs."""
    first: dict[str, str] = {}
    for name in names:
        layer, mark, expert = name.partition(".experts.")
        part = expert.partition(".")[2]
        other = first.setdefault(f"{layer} {part}", name) if mark else name
        if kinds.get(other) != kinds.get(name):
            types = " and ".join(str(kinds.get(one, "no blocks")) for one in (other, name))
            raise UsageError(
                f"{where}: {other} and {name} are experts of one layer in {types}", hint
            )


def _check_excluded(patterns: Sequence[str], config: CheckpointConfig, where: str) -> None:
    """Refuse layers that are FP8 in part; patterns match as in TensorRT-LLM's quantize.py."""
    linears = fp8_linears(config)
    excluded = next((n for p in patterns for n in linears if fnmatchcase(n, p)), None)
    if excluded is not None:
        raise UsageError(
            f"{where}: exclude_modules leaves {excluded} unquantised, which is not supported",
            "quantise all linears of the layers, as trtla convert does",
        )


def _check_rope(config: CheckpointConfig, where: str) -> None:
    scaling, kind = config.rotary_scaling or {}, config.rope_type
    if kind not in ROPE_TYPES:
        raise _unsupported(f"{where}: rope scaling {kind}", f"trtla runs {', '.join(ROPE_TYPES)}")
    if kind == "longrope":
        _check_longrope(scaling, config.rotary_size // 2, where)
    part = config.unrotated_layers or config.local_rotary_base or config.rotary_pct != 1
    if kind == "dynamic" and part:
        raise _unsupported(
            f"{where}: rope scaling dynamic of a part of the model", "use another scaling"
        )
    partial = scaling.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        hint = "trtla runs models that rotate whole heads"
        raise _unsupported(f"{where}: partial_rotary_factor {partial}", hint)
    given = [key for key in _OPTIONAL_KEYS.get(kind, ()) if scaling.get(key) is not None]
    for key in (*given, *_SCALING_KEYS.get(kind, ())):
        value = scaling.get(key)
        if key in ("mscale", "mscale_all_dim") and value == 0:
            continue
        if not is_positive(value):
            raise UsageError(
                f'{where}: rope scaling {kind} has "{key}" {value!r}', "give a number above 0"
            )
    low, high = (scaling.get(f"{end}_freq_factor", 0) for end in ("low", "high"))
    impossible = {
        "yarn": config.rotary_base == 1,
        "dynamic": config.head_size == 2,
        "llama3": kind == "llama3" and low >= high,
    }
    if impossible.get(kind):
        size, base = config.head_size, config.rotary_base
        raise UsageError(
            f"{where}: rope scaling {kind} of heads of {size} and base {base:g} cannot be computed",
            "copy config.json again",
        )


def _check_longrope(scaling: dict[str, Any], count: int, where: str) -> None:
    """Refuse factors that are not one positive number for each frequency."""
    for key in ("short_factor", "long_factor"):
        factors = scaling.get(key)
        known = factors if isinstance(factors, list) and len(factors) == count else [None]
        if not all(map(is_positive, known)):
            raise UsageError(
                f'{where}: "{key}" of rope scaling longrope is not {count} numbers above 0',
                "copy config.json again",
            )


def split_config(config: CheckpointConfig, tp_size: int) -> CheckpointConfig:
    """The same model on this many ranks of tensor parallelism.

    Each has its attention heads, its part of the intermediate size and of lm_head, and the whole
    embedding.
    """
    mapping = Mapping(world_size=tp_size, tp_size=tp_size)
    split = single_rank(config).model_copy(update={"mapping": mapping})
    check_tp_size(split)
    shapes = hf_shapes(config)
    for name, kind in config.block_types.items():
        each, inputs = shapes[name][-1] // tp_size, BLOCK_SIZES[kind][0]
        if name.endswith(_SPLIT_BY_INPUTS) and each % inputs:
            raise UsageError(
                f"tp_size {tp_size} leaves a rank {each} inputs of {name}, and a block of {kind} "
                f"has {inputs}",
                f"use a smaller {named('tp_size')}{_or_plain(config)}",
            )
    return split


def shard_config(config: CheckpointConfig, tp_size: int) -> CheckpointConfig:
    """One rank's part of a model as a model of its own, with the whole vocabulary."""
    sizes = {
        "num_attention_heads": config.num_attention_heads // tp_size,
        "num_key_value_heads": max(1, config.num_key_value_heads // tp_size),
        "intermediate_size": config.intermediate_size // tp_size,
        "moe_intermediate_size": config.moe_intermediate_size // tp_size,
        "shared_intermediate_size": config.shared_intermediate_size // tp_size,
    }
    return single_rank(config).model_copy(update=sizes)


def kv_bytes_per_token(config: CheckpointConfig) -> int:
    """Bytes of one rank's keys and values of one token."""
    mapping = config.mapping
    heads = max(config.num_key_value_heads // mapping.tp_size, 1)
    layers = config.num_hidden_layers // mapping.pp_size
    size = 1 if config.quantization.kv_cache_quant_algo else DTYPE_BYTES[config.dtype]
    return 2 * layers * heads * config.head_size * size


def expert_numbers(config: CheckpointConfig) -> int:
    """The numbers that all experts of a model hold."""
    mixtures = sum(map(config.has_experts, range(config.num_hidden_layers)))
    return 3 * config.hidden_size * mixtures * config.num_experts * config.moe_intermediate_size


def plain_bytes(config: CheckpointConfig, size: int, *, fp8: bool = False) -> int:
    """Bytes of a model whose weights are all held in one type.

    Args:
        size: bytes of a number of the type.
        fp8: True for a model whose linear weights are FP8.
    """
    hidden, head = config.hidden_size, config.head_size
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    mixtures = sum(map(config.has_experts, range(config.num_hidden_layers)))
    mlps = 3 * hidden * (config.num_hidden_layers - mixtures) * config.intermediate_size
    plain = 2 * hidden * config.num_hidden_layers + hidden + hidden * config.vocab_size
    plain += mixtures * config.num_experts * hidden
    mlps += 3 * hidden * mixtures * config.shared_intermediate_size
    layers = attention * config.num_hidden_layers + mlps + expert_numbers(config)
    return layers * (1 if fp8 else size) + plain * size
