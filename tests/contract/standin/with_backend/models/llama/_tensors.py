"""Which tensors a rank of a dense Llama or Qwen2 needs; models/{llama,qwen}/model.py.

`fc` is the gate projection, `gate` the up projection, `proj` the down projection. Of the
quantisations FP8, W8A16, W4A16 and W4A16_AWQ are known here; the layers of the latter three are
those of quantization/layers.py, which pad sizes that their kernels do not take.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

import torch

from ..._standin import StandinUndefinedBehaviour
from ..modeling_utils import PretrainedConfig

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
WEIGHT_ONLY = ("W8A16", "W4A16", "W4A16_AWQ")
DEFAULT_EXCLUDED = ("lm_head", "router", "*vocab_embedding", "*position_embedding")


@dataclass(frozen=True)
class Need:
    """A tensor that must be in the rank file; any of the types will do."""

    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


def needed(config: PretrainedConfig) -> dict[str, Need]:
    v = config.__dict__
    if config.quant_algo not in (None, "FP8", *WEIGHT_ONLY) or config.quantization.has_zero_point:
        raise StandinUndefinedBehaviour(f"the stand-in knows no tensors of {config.quant_algo}")
    plain = (DTYPES[config.dtype],)
    found: dict[str, Need] = {}
    if config.mapping.is_first_pp_rank():
        found.update(_embedding_tensors(config, "transformer.vocab_embedding"))
    for layer in range(len(config.mapping.pp_layers(v["num_hidden_layers"]))):
        found.update(_layer(config, f"transformer.layers.{layer}."))
    if config.mapping.is_last_pp_rank():
        found["transformer.ln_f.weight"] = Need((v["hidden_size"],), plain)
        rows = -(-v["vocab_size"] // config.mapping.tp_size)
        found["lm_head.weight"] = Need((rows, v["hidden_size"]), plain)
    return found


def _embedding_tensors(config: PretrainedConfig, name: str) -> dict[str, Need]:
    """weight_only_quantize replaces an embedding that is not excluded by one of int8."""
    found = {f"{name}.weight": Need(_embedding(config), (DTYPES[config.dtype],))}
    if config.quant_algo in ("W8A16", "W4A16") and not _excluded(config, name):
        rows = (found[f"{name}.weight"].shape[0],)
        found[f"{name}.per_token_scale"] = Need(rows, (DTYPES[config.dtype],))
    return found


def _embedding(config: PretrainedConfig) -> tuple[int, int]:
    v, tp = config.__dict__, config.mapping.tp_size
    if not v["use_parallel_embedding"] or tp == 1:
        return v["vocab_size"], v["hidden_size"]
    if v["embedding_sharding_dim"] == 0:
        return -(-v["vocab_size"] // tp), v["hidden_size"]
    return v["vocab_size"], _divided(v["hidden_size"], tp, "hidden_size")


def _divided(value: int, parts: int, name: str) -> int:
    if value % parts:
        raise AssertionError(f"{name} {value} cannot be divided by tp_size {parts}")
    return value // parts


def _layer(config: PretrainedConfig, prefix: str) -> dict[str, Need]:
    v, tp = config.__dict__, config.mapping.tp_size
    hidden, size = v["hidden_size"], v["head_size"]
    heads, kv = v["num_attention_heads"], v["num_key_value_heads"]
    if kv < tp and tp % kv:
        raise AssertionError(f"tp_size {tp} is no multiple of num_key_value_heads {kv}")
    inner = _divided(v["intermediate_size"], tp, "intermediate_size")
    queries = _divided(heads, tp, "num_attention_heads") * size
    kv_rows = _divided(max(kv, tp), tp, "num_key_value_heads") * size
    shapes = {
        "attention.qkv": (queries + 2 * kv_rows, hidden),
        "attention.dense": (hidden, queries),
        "mlp.fc": (inner, hidden),
        "mlp.gate": (inner, hidden),
        "mlp.proj": (hidden, inner),
    }
    dense_bias = v["attn_bias"] and config.architecture != "Qwen2ForCausalLM"
    biased = {"attention.qkv": v["attn_bias"], "attention.dense": dense_bias}
    plain = (DTYPES[config.dtype],)
    found = {
        prefix + f"{name}.weight": Need((hidden,), plain)
        for name in ("input_layernorm", "post_layernorm")
    }
    for name, shape in shapes.items():
        found.update(_linear(config, prefix + name, shape, biased.get(name, v["mlp_bias"])))
    if config.quantization.kv_cache_quant_algo is not None:
        scale = Need((1,), (torch.float32,))
        found[prefix + "attention.kv_cache_scaling_factor"] = scale
    return found


def _linear(
    config: PretrainedConfig, name: str, shape: tuple[int, int], bias: bool
) -> dict[str, Need]:
    plain = (DTYPES[config.dtype],)
    found = {f"{name}.bias": Need(shape[:1], plain)} if bias else {}
    if config.quant_algo is None or _excluded(config, name):
        return {**found, f"{name}.weight": Need(shape, plain)}
    if config.quant_algo in WEIGHT_ONLY:
        return {**found, **_integers(config, name, _padded(config, name, shape))}
    scale = Need((1,), (torch.float32,))
    return {
        **found,
        f"{name}.weight": Need(shape, (torch.float8_e4m3fn, torch.int8)),
        f"{name}.weights_scaling_factor": scale,
        f"{name}.activation_scaling_factor": scale,
    }


def _padded(config: PretrainedConfig, name: str, shape: tuple[int, int]) -> tuple[int, int]:
    """A rank's outputs and inputs after the constructor has padded those of the whole layer."""
    tp, groups = config.mapping.tp_size, config.quant_algo == "W4A16_AWQ"
    multiple = (max(64, config.quantization.group_size) if groups else 64) * tp
    by_inputs = name.endswith((".dense", ".proj"))
    parts = (1, tp) if by_inputs else (tp, 1)
    sizes = [-(-size * n // multiple) * multiple // n for size, n in zip(shape, parts, strict=True)]
    return sizes[0], sizes[1]


def _integers(config: PretrainedConfig, name: str, shape: tuple[int, int]) -> dict[str, Need]:
    """What a checkpoint holds of a weight-only layer; plain weights are rounded in `load`."""
    plain = (DTYPES[config.dtype],)
    if config.quant_algo != "W4A16_AWQ":
        return {f"{name}.weight": Need(shape, plain)}
    outputs, inputs = shape
    groups = (outputs, inputs // config.quantization.group_size)
    found = {
        f"{name}.weight": Need((outputs // 2, inputs), (torch.int8,)),
        f"{name}.weights_scaling_factor": Need(groups, tuple(DTYPES.values())),
    }
    if config.quantization.pre_quant_scale:
        found[f"{name}.prequant_scaling_factor"] = Need((inputs,), plain)
    return found


def _excluded(config: PretrainedConfig, name: str) -> bool:
    patterns = config.quantization.exclude_modules
    known = DEFAULT_EXCLUDED if patterns is None else tuple(patterns)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in known)
