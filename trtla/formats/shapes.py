"""The tensors of a Hugging Face model and their shapes, by its config."""

from __future__ import annotations

from collections.abc import Iterator

from trtla.formats.config import CheckpointConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
ROUTER = ".mlp.gate.weight"
"""The end of the name of a router's weight."""
CORRECTION = "mlp.gate.e_score_correction.bias"
"""A layer's numbers of `score_correction`, one of each expert."""
SHARED = "mlp.shared_expert"
"""The expert that all tokens share."""
SINKS = "self_attn.sinks.weight"
"""A layer's scores of `attention_sinks`, one of each head."""


def hf_shapes(config: CheckpointConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the Hugging Face checkpoint with its shape, in file order."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (vocab, hidden)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for name, out_size, in_size, bias in _linears(config, layer):
            shapes[f"{prefix}.{name}.weight"] = (out_size, in_size)
            if bias:
                shapes[f"{prefix}.{name}.bias"] = (out_size,)
        for name, _, size in norms(config):
            shapes[f"{prefix}.{name}.weight"] = (size,)
        if config.attention_sinks:
            shapes[f"{prefix}.{SINKS}"] = (config.num_attention_heads,)
        if config.score_correction and config.has_experts(layer):
            shapes[f"{prefix}.{CORRECTION}"] = (config.num_experts,)
        if config.shared_expert_gate and config.has_experts(layer):
            shapes[f"{prefix}.{SHARED}_gate.weight"] = (hidden,)
    return {**shapes, FINAL_NORM: (hidden,), LM_HEAD: (vocab, hidden)}


def linear_weights(config: CheckpointConfig) -> dict[str, tuple[int, ...]]:
    """The weights of linears, which may be quantised: all matrices but routers, whose choices
    rounding would change."""
    shapes = hf_shapes(config).items()
    return {n: shape for n, shape in shapes if len(shape) == 2 and not n.endswith(ROUTER)}


def _linears(config: CheckpointConfig, layer: int) -> Iterator[tuple[str, int, int, bool]]:
    """Name, outputs, inputs and bias of every linear of a layer, as Hugging Face has them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_size
    keys = config.num_key_value_heads * config.head_size
    yield "self_attn.q_proj", queries, hidden, config.attn_bias
    yield "self_attn.k_proj", keys, hidden, config.attn_bias
    yield "self_attn.v_proj", keys, hidden, config.attn_bias
    yield "self_attn.o_proj", hidden, queries, config.dense_bias
    mlps, bias = ["mlp"], config.mlp_bias
    if config.has_experts(layer):
        yield "mlp.gate", config.num_experts, hidden, config.moe_bias
        if shared := config.shared_intermediate_size:
            yield f"{SHARED}.gate_proj", shared, hidden, False
            yield f"{SHARED}.up_proj", shared, hidden, False
            yield f"{SHARED}.down_proj", hidden, shared, False
        mlps = [f"mlp.experts.{expert}" for expert in range(config.num_experts)]
        inner, bias = config.moe_intermediate_size, config.moe_bias
    for mlp in mlps:
        yield f"{mlp}.gate_proj", inner, hidden, bias
        yield f"{mlp}.up_proj", inner, hidden, bias
        yield f"{mlp}.down_proj", hidden, inner, bias


def norms(config: CheckpointConfig) -> Iterator[tuple[str, str, int]]:
    """Hugging Face's name, TensorRT-LLM's and the size of every norm of a layer."""
    hidden, head = config.hidden_size, config.head_size
    yield "input_layernorm", "input_layernorm", hidden
    yield "post_attention_layernorm", "post_layernorm", hidden
    if config.sandwich_norms:
        yield "pre_feedforward_layernorm", "pre_feedforward_layernorm", hidden
        yield "post_feedforward_layernorm", "post_feedforward_layernorm", hidden
    if config.qk_layernorm:
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        each = (heads, kv_heads) if config.qk_norm_all_heads else (1, 1)
        yield "self_attn.q_norm", "attention.q_layernorm", each[0] * head
        yield "self_attn.k_norm", "attention.k_layernorm", each[1] * head
