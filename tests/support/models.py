"""Small random Hugging Face models in every spelling, and rank files read by hand.

`assemble` follows TensorRT-LLM's tensor table with plain concatenations and knows nothing of
trtla's plan, so that a mistake in the plan cannot cancel out.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.support.tokenizers import save_byte_tokenizer
from trtla.formats.config import CheckpointConfig, Mapping
from trtla.formats.families import ARCHITECTURES

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48}
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BASE: dict[str, Any] = {**SIZES, "max_position_embeddings": 16, "rms_norm_eps": 1e-5}


@dataclass(frozen=True)
class Variant:
    """One kind of model: keys on top of BASE, config.json's spelling, how weights are stored."""

    name: str
    keys: dict[str, Any] = field(default_factory=dict)
    spelling: int = 5
    weights: str = "safetensors"
    family: str = "llama"


FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}
VARIANTS = [
    Variant("gqa"),
    Variant("mqa", {"num_key_value_heads": 1}),
    Variant("mha", {"num_key_value_heads": 4}),
    Variant("tied", {"tie_word_embeddings": True}),
    Variant("tied-bin", {"tie_word_embeddings": True}, weights="bin"),
    Variant("head-dim", {"head_dim": 24}),
    Variant("attention-bias", {"attention_bias": True}),
    Variant("mlp-bias", {"mlp_bias": True}),
    Variant("all-biases-mqa", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    Variant("theta", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    Variant("theta-v4", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 4),
    Variant("linear", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    Variant("linear-v4", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 4),
    Variant("linear-v3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 3),
    Variant("dynamic", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
    Variant("dynamic-v3", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, 3),
    Variant("llama3", {"rope_parameters": LLAMA3}),
    Variant("llama3-v4", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 4),
    Variant("yarn", {"rope_parameters": YARN}),
    Variant("yarn-v4", {"rope_parameters": {**YARN, "attention_factor": 0.7}}, 4),
    Variant(
        "yarn-edges",
        {
            "rope_parameters": {
                **YARN,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "mscale": 0.7,
                "mscale_all_dim": 1.2,
                "truncate": False,
            }
        },
    ),
    Variant("mistral", {"sliding_window": None}, family="mistral"),
    Variant("mistral-window", {"sliding_window": 8, "head_dim": 24}, family="mistral"),
    Variant(
        "qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 4, family="qwen2"
    ),
    Variant(
        "qwen2-tied-mqa", {"tie_word_embeddings": True, "num_key_value_heads": 1}, family="qwen2"
    ),
    Variant(
        "qwen2-window",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        family="qwen2",
    ),
    Variant("sharded", weights="sharded"),
    Variant("bin", weights="bin"),
    Variant("sharded-bin", weights="sharded-bin"),
    Variant("no-prefix", weights="no-prefix"),
]


def named(variants: list[Variant]) -> list[Any]:
    """Their names as parameters; what differs by an older spelling of config.json alone is deep."""
    return [
        pytest.param(one.name, marks=() if one.spelling == 5 else pytest.mark.deep)
        for one in variants
    ]


def make_model(variant: Variant, seed: int = 0) -> LlamaForCausalLM:
    """A float32 model whose norms and biases are random too, so that a mistake in them shows."""
    torch.manual_seed(seed)
    keys = {**BASE, **variant.keys}
    if "rope_parameters" in keys:
        keys["rope_parameters"] = {"rope_theta": 10000.0, **keys["rope_parameters"]}
    config, kind = FAMILIES[variant.family]
    model: LlamaForCausalLM = kind(config(**keys))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(1.0 if "norm" in name else 0.0, 0.3 if tensor.dim() == 1 else 0.1)
    return model.eval()


def save_model(model: LlamaForCausalLM, variant: Variant, folder: Path) -> Path:
    """Write the folder as transformers of that age and storage would have."""
    sharded = variant.weights.startswith("sharded")
    model.save_pretrained(folder, max_shard_size="60KB" if sharded else "5GB")
    if variant.weights == "no-prefix":
        _rewrite(folder, lambda name: name.removeprefix("model."), rotary=True)
    if variant.weights.endswith("bin"):
        _to_bin(folder, model)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(respell(config, variant.spelling)))
    return folder


def respell(config: dict[str, Any], spelling: int) -> dict[str, Any]:
    """config.json of transformers 5, 4, or 3-like (`type`, no `rope_type`)."""
    if spelling == 5:
        return config
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    key = "rope_type" if spelling == 4 else "type"
    config["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    return config


def _rewrite(folder: Path, rename: Any, rotary: bool) -> None:
    from safetensors.torch import save_file

    tensors = {rename(k): v for k, v in load_file(folder / "model.safetensors").items()}
    if rotary:
        tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, folder / "model.safetensors")


def _to_bin(folder: Path, model: LlamaForCausalLM) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        return
    data = json.loads(index.read_text())
    index.unlink()
    for name in set(data["weight_map"].values()):
        torch.save(load_file(folder / name), folder / name.replace(".safetensors", ".bin"))
        (folder / name).unlink()
    data["weight_map"] = {
        k: v.replace(".safetensors", ".bin") for k, v in data["weight_map"].items()
    }
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(data))


def assemble(folder: Path) -> dict[str, torch.Tensor]:
    """Hugging Face state dict from the rank files, by TensorRT-LLM's rules alone."""
    config = json.loads((folder / "config.json").read_text())
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    ranks = [load_file(folder / f"rank{rank}.safetensors") for rank in range(tp * pp)]
    state: dict[str, torch.Tensor] = {
        "model.embed_tokens.weight": ranks[0]["transformer.vocab_embedding.weight"],
        "model.norm.weight": ranks[-1]["transformer.ln_f.weight"],
    }
    if len(ranks) == 1 and config["tie_word_embeddings"]:
        assert "lm_head.weight" not in ranks[0]
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    else:
        head = torch.cat([rank["lm_head.weight"] for rank in ranks[-tp:]])
        state["lm_head.weight"] = head[: config["vocab_size"]]
    layers = config["num_hidden_layers"] // pp
    for layer in range(layers * pp):
        group = ranks[layer // layers * tp : (layer // layers + 1) * tp]
        prefix = f"transformer.layers.{layer % layers}."
        parts = [
            {k.removeprefix(prefix): v for k, v in r.items() if k.startswith(prefix)} for r in group
        ]
        for name, tensor in _layer(parts, config).items():
            state[f"model.layers.{layer}.{name}"] = tensor
    return state


def _layer(parts: list[dict[str, torch.Tensor]], config: dict[str, Any]) -> dict[str, torch.Tensor]:
    out = {
        "input_layernorm.weight": parts[0]["input_layernorm.weight"],
        "post_attention_layernorm.weight": parts[0]["post_layernorm.weight"],
        "self_attn.o_proj.weight": torch.cat([p["attention.dense.weight"] for p in parts], 1),
        "mlp.down_proj.weight": torch.cat([p["mlp.proj.weight"] for p in parts], 1),
    }
    for kind in ("weight", "bias"):
        if f"attention.qkv.{kind}" in parts[0]:
            out.update(_qkv([p[f"attention.qkv.{kind}"] for p in parts], config, kind))
        if f"mlp.fc.{kind}" in parts[0]:
            out[f"mlp.gate_proj.{kind}"] = torch.cat([p[f"mlp.fc.{kind}"] for p in parts])
            out[f"mlp.up_proj.{kind}"] = torch.cat([p[f"mlp.gate.{kind}"] for p in parts])
    if "attention.dense.bias" in parts[0]:
        out["self_attn.o_proj.bias"] = parts[-1]["attention.dense.bias"]
    if "mlp.proj.bias" in parts[0]:
        out["mlp.down_proj.bias"] = parts[-1]["mlp.proj.bias"]
    return out


def _qkv(parts: list[torch.Tensor], config: dict[str, Any], kind: str) -> dict[str, torch.Tensor]:
    tp, size = len(parts), config["head_size"]
    q, kv = config["num_attention_heads"] // tp, max(config["num_key_value_heads"], tp) // tp
    split = [part.split([q * size, kv * size, kv * size]) for part in parts]
    copies = max(tp // config["num_key_value_heads"], 1)
    names = ("q_proj", "k_proj", "v_proj")
    every = (1, copies, copies)
    return {
        f"self_attn.{name}.{kind}": torch.cat([s[i] for s in split[:: every[i]]])
        for i, name in enumerate(names)
    }


def model_of(config: dict[str, Any], state: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    """A Hugging Face model made from a checkpoint's config.json and a state dict alone."""
    scaling = config["rotary_scaling"] or {"rope_type": "default"}
    windows = config.get("layer_windows", [])
    own: dict[str, Any] = {"attention_bias": config["attn_bias"], "mlp_bias": config["mlp_bias"]}
    family = "mistral" if any(windows) else "llama"
    if any(windows):
        own |= {"sliding_window": max(filter(None, windows))}
    if config["architecture"] == "Qwen2ForCausalLM":
        family = "qwen2"
        kinds = ["sliding_attention" if one else "full_attention" for one in windows]
        own |= {"use_sliding_window": any(windows), "layer_types": kinds or None}
    config_class, kind = FAMILIES[family]
    hf_config = config_class(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        num_key_value_heads=config["num_key_value_heads"],
        head_dim=config["head_size"],
        rms_norm_eps=config["norm_epsilon"],
        max_position_embeddings=config["max_position_embeddings"],
        **own,
        rope_parameters={**scaling, "rope_theta": config["rotary_base"]},
    )
    model: LlamaForCausalLM = kind(hf_config)
    model.load_state_dict(state)
    return model.eval()


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    """Logits of two sequences of 24 tokens: above BASE's positions, so that `dynamic` scales."""
    tokens = torch.arange(48).view(2, 24) * 7 % 101
    with torch.no_grad():
        result: torch.Tensor = model(tokens).logits
    return result


def byte_model(folder: Path, *, tokenizer: bool = True) -> Path:
    """A random Llama in float32; ids 0 to 255 are bytes, 256 begins and 257 ends a text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=256,
        eos_token_id=257,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    if tokenizer:
        save_byte_tokenizer(folder)
    return folder


class Evil:
    """Its unpickling would write a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("evil", "w"))


@st.composite
def configs(draw: st.DrawFn) -> CheckpointConfig:
    tp = draw(st.sampled_from([1, 2, 3, 4]))
    pp = draw(st.integers(1, 3))
    kv = draw(st.sampled_from([n for n in range(1, 9) if n % tp == 0 or tp % n == 0]))
    groups = draw(st.sampled_from([g for g in range(1, 9) if (kv * g) % tp == 0]))
    keys: dict[str, Any] = {
        "architecture": draw(st.sampled_from(ARCHITECTURES)),
        "dtype": "float32",
        "vocab_size": draw(st.integers(1, 20)),
        "hidden_size": tp * draw(st.integers(1, 4)),
        "num_hidden_layers": pp * draw(st.integers(1, 2)),
        "num_attention_heads": kv * groups,
        "num_key_value_heads": kv,
        "head_size": 2 * draw(st.integers(1, 3)),
        "intermediate_size": tp * draw(st.integers(1, 5)),
        "max_position_embeddings": 64,
        "attn_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "use_parallel_embedding": draw(st.booleans()),
        "embedding_sharding_dim": draw(st.integers(0, 1)),
        "mapping": Mapping(world_size=tp * pp, gpus_per_node=8, tp_size=tp, pp_size=pp),
    }
    return CheckpointConfig(**keys)


def by_hand(folder: Path, target: Path) -> Path:
    """The same checkpoint with float32 weights: code x scale x what inputs are multiplied by."""
    shutil.copytree(folder, target)
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization": None}))
    for path in sorted(folder.glob("rank*.safetensors")):
        tensors = load_file(path)
        for name in [n.removesuffix(".weights_scaling_factor") for n in tensors]:
            scales = tensors.pop(f"{name}.weights_scaling_factor", None)
            if scales is not None:
                first = tensors.pop(f"{name}.prequant_scaling_factor").float()
                packed = tensors[f"{name}.weight"].tolist()
                codes = [[signed(byte, half) for byte in row] for row in packed for half in (0, 4)]
                group = len(codes[0]) // scales.shape[1]
                wide = scales[:, [i // group for i in range(len(codes[0]))]]
                tensors[f"{name}.weight"] = torch.tensor(codes) * wide * first
        save_file(tensors, target / path.name)
    return target


def signed(byte: int, shift: int) -> int:
    """Four bits of a byte in two's complement."""
    half = (byte % 256 >> shift) % 16
    return half - 16 if half > 7 else half
