"""A float32 model put together from the ranks' tensors; models/llama/convert.py read backwards."""

from __future__ import annotations

import os
from typing import Any

import torch

_FIRST = "prequant_scaling_factor"
Tensors = dict[str, torch.Tensor]


class EngineModel:
    """Logits of token sequences. Every call computes the whole sequence."""

    def __init__(self, config: dict[str, Any], ranks: list[Tensors], tp_size: int) -> None:
        self._model = _empty(config)
        self._model.load_state_dict(_state(config, ranks, tp_size))
        self._model.eval()
        self._noise = torch.Generator().manual_seed(0)

    def logits(self, rows: list[list[int]]) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = self._model(torch.tensor(rows), use_cache=False).logits
        if noise := float(os.environ.get("TENSORRT_LLM_STANDIN_NOISE") or 0):
            result += noise * (2 * torch.rand(result.shape, generator=self._noise) - 1)
        return result


def _empty(config: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    qwen2 = config["architecture"] == "Qwen2ForCausalLM"
    config_class, kind = (
        (Qwen2Config, Qwen2ForCausalLM) if qwen2 else (LlamaConfig, LlamaForCausalLM)
    )
    scaling = dict(config.get("rotary_scaling") or {"rope_type": "default"})
    scaling.setdefault("rope_type", scaling.get("type", "default"))
    return kind(
        config_class(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=config["num_attention_heads"],
            num_key_value_heads=config["num_key_value_heads"],
            head_dim=config["head_size"],
            rms_norm_eps=config["norm_epsilon"],
            max_position_embeddings=config["max_position_embeddings"] or 2048,
            attention_bias=config["attn_bias"],
            mlp_bias=config["mlp_bias"],
            tie_word_embeddings=False,
            rope_parameters={**scaling, "rope_theta": config["rotary_base"]},
        )
    )


def _state(config: dict[str, Any], ranks: list[Tensors], tp: int) -> Tensors:
    vocab, layers = config["vocab_size"], config["num_hidden_layers"]
    embeddings = [rank["transformer.vocab_embedding.weight"] for rank in ranks[:tp]]
    split = embeddings[0].shape != (vocab, config["hidden_size"])
    dim = config["embedding_sharding_dim"]
    embedding = torch.cat(embeddings, dim)[:vocab] if split else embeddings[0]
    state = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": ranks[-1]["transformer.ln_f.weight"],
        "lm_head.weight": torch.cat([rank["lm_head.weight"] for rank in ranks[-tp:]])[:vocab],
    }
    per_stage = layers * tp // len(ranks)
    for layer in range(layers):
        stage, local = divmod(layer, per_stage)
        group = ranks[stage * tp : (stage + 1) * tp]
        prefix = f"transformer.layers.{local}."
        for name, tensor in _layer(_plain(group, prefix), config).items():
            state[f"model.layers.{layer}.{name}"] = tensor
    return {name: tensor.float() for name, tensor in state.items()}


def _plain(group: list[Tensors], prefix: str) -> list[Tensors]:
    """A layer's tensors on each rank, FP8 and int4 weights multiplied out."""
    parts = []
    for rank in group:
        part = {k.removeprefix(prefix): v for k, v in rank.items() if k.startswith(prefix)}
        for name in [name for name in part if name.endswith(".weights_scaling_factor")]:
            weight = name.replace("weights_scaling_factor", "weight")
            if part[name].dim() == 2:
                part[weight] = _int4(part[weight], part[name], part.get(f"{weight[:-7]}.{_FIRST}"))
            else:
                part[weight] = part[weight].view(torch.float8_e4m3fn).float() * part[name]
        parts.append(part)
    return parts


def _int4(packed: torch.Tensor, scales: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
    """W4A16_AWQ: pairs of outputs in a byte, the even one low, in two's complement."""
    unsigned = packed.to(torch.int16) & 255
    codes = torch.empty(2 * len(packed), packed.shape[1])
    for row, halves in enumerate((unsigned % 16, unsigned // 16)):
        codes[row::2] = torch.where(halves > 7, halves - 16, halves).float()
    numbers = codes * scales.float().repeat_interleave(packed.shape[1] // scales.shape[1], 1)
    return numbers if first is None else numbers * first.float()


def _layer(parts: list[Tensors], config: dict[str, Any]) -> Tensors:
    state = {
        "input_layernorm.weight": parts[0]["input_layernorm.weight"],
        "post_attention_layernorm.weight": parts[0]["post_layernorm.weight"],
    }
    for theirs, ours, dim in (
        ("attention.dense", "self_attn.o_proj", 1),
        ("mlp.fc", "mlp.gate_proj", 0),
        ("mlp.gate", "mlp.up_proj", 0),
        ("mlp.proj", "mlp.down_proj", 1),
    ):
        state[f"{ours}.weight"] = torch.cat([part[f"{theirs}.weight"] for part in parts], dim)
        if f"{theirs}.bias" in parts[0]:
            biases = [part[f"{theirs}.bias"] for part in parts]
            state[f"{ours}.bias"] = biases[0] if dim else torch.cat(biases)
    for kind in ("weight", "bias"):
        if f"attention.qkv.{kind}" in parts[0]:
            state.update(_qkv([part[f"attention.qkv.{kind}"] for part in parts], config, kind))
    return state


def _qkv(fused: list[torch.Tensor], config: dict[str, Any], kind: str) -> Tensors:
    """Undo the fusion; of K/V heads that several ranks have, one copy is kept."""
    tp, size = len(fused), config["head_size"]
    kv_heads = config["num_key_value_heads"]
    rows = config["num_attention_heads"] // tp * size
    kv_rows = max(kv_heads, tp) // tp * size
    queries, keys, values = [], [], []
    for rank, tensor in enumerate(fused):
        q, k, v = tensor.split([rows, kv_rows, kv_rows])
        queries.append(q)
        if rank % max(tp // kv_heads, 1) == 0:
            keys.append(k)
            values.append(v)
    return {
        f"self_attn.{name}_proj.{kind}": torch.cat(parts)
        for name, parts in (("q", queries), ("k", keys), ("v", values))
    }
