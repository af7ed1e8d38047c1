"""The families of mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtla.formats.family import ALL_WINDOWED, GRANITE, NO_BIASES, QWEN, WINDOW, ExpertNames, Family

_ONE_NAME = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
_EXPERT_KEYS = (*_ONE_NAME, "num_local_experts")
_GGUF_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_EXPERT_WIDTH = ("intermediate_size", "moe_intermediate_size")
"""Of families whose key is that of experts."""
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_SHARED_EXPERTS = ExpertNames(
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)
_GGUF_DENSE = {
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers",  # which are left out
}
_GGUF_NO_DENSE = {"leading_dense_block_count": 0, "expert_shared_count": 0}
GGUF_SHARED = "expert_shared_feed_forward_length"
_GRANITE_EXPERTS = ExpertNames(
    router="block_sparse_moe.router.layer",
    gate="block_sparse_moe.input_linear",
    up="block_sparse_moe.input_linear",
    down="block_sparse_moe.output_linear",
    shared_gate="shared_mlp.input_linear",
    shared_up="shared_mlp.input_linear",
    shared_down="shared_mlp.output_linear",
)


def _glm_scores(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The function of its GGUF files' scores by name; 2 is llama.cpp's number of sigmoids."""
    return {"scoring_func": "sigmoid" if keys.get("scoring_func", 2) == 2 else "softmax"}


_GPT_OSS_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _gpt_oss_scaling(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The scaling of its GGUF files, without the rounding that its training did not have."""
    scaling = keys["rope_scaling"] or {"rope_type": "default"}
    return {"rope_scaling": {**scaling, "truncate": False}}


MIXTURES = (
    Family(
        model_type="mixtral",
        architecture="MixtralForCausalLM",
        gguf="llama",
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_experts": 8,
            "num_experts_per_tok": 2,
        },
        fixed={**ALL_WINDOWED, **NO_BIASES, "layer_types": None, "norm_topk_prob": True},
        spelled=(_EXPERT_WIDTH,),
        reads=_EXPERT_KEYS,
        gguf_keys=_GGUF_EXPERTS,
        gguf_pairs=True,
        experts=ExpertNames(
            "block_sparse_moe.gate",
            *(f"block_sparse_moe.experts.{{}}.{name}" for name in ("w1", "w3", "w2")),
        ),
    ),
    Family(
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        gguf="qwen3moe",
        absent={
            **{key: value for key, value in QWEN.items() if key != "max_window_layers"},
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        fixed={
            "qk_layernorm": True,
            "mlp_bias": False,
            "max_window_layers": 0,
            "layer_types": None,
        },
        reads=("qk_layernorm", *_EXPERT_KEYS),
        gguf_keys=_GGUF_EXPERTS,
        gguf_implied=lambda keys: {"norm_topk_prob": True},  # as in llama.cpp
        experts=ExpertNames(),
    ),
    Family(
        model_type="qwen2_moe",
        architecture="Qwen2MoeForCausalLM",
        gguf="qwen2moe",
        absent={
            "max_position_embeddings": 32768,
            "num_key_value_heads": 16,
            "sliding_window": WINDOW,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_intermediate_size": 5632,
            "attention_bias": True,
        },
        fixed={
            "shared_expert_gate": True,
            "mlp_bias": False,
            "use_sliding_window": False,
            "max_window_layers": 0,
            "layer_types": None,
        },
        spelled=(("qkv_bias", "attention_bias"), _SHARED_WIDTH),
        reads=(*_ONE_NAME, "shared_expert_intermediate_size"),
        gguf_keys={**_GGUF_EXPERTS, GGUF_SHARED: "shared_intermediate_size"},
        experts=ExpertNames(),
    ),
    Family(
        model_type="olmoe",
        architecture="OlmoeForCausalLM",
        gguf="olmoe",
        absent={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        fixed={"qk_layernorm": True, "qk_norm_all_heads": True, "mlp_bias": False},
        spelled=(_EXPERT_WIDTH,),
        reads=("qk_layernorm", *_EXPERT_KEYS),
        has_windows=False,
        gguf_keys=_GGUF_EXPERTS,
        experts=ExpertNames(),
    ),
    Family(
        model_type="granitemoe",
        architecture="GraniteMoeForCausalLM",
        gguf="granitemoe",
        absent={"attention_multiplier": 1.0, "num_experts": 8, "num_experts_per_tok": 2},
        fixed={"norm_topk_prob": True, "mlp_bias": False},
        spelled=(("num_local_experts", "num_experts"), _EXPERT_WIDTH),
        reads=(*GRANITE.values(), *_EXPERT_KEYS),
        has_windows=False,
        gguf_keys={**GRANITE, **_GGUF_EXPERTS},
        gguf_pairs=True,
        experts=_GRANITE_EXPERTS,
    ),
    Family(
        model_type="granitemoeshared",
        architecture="GraniteMoeSharedForCausalLM",
        gguf="granitemoe",
        absent={"attention_multiplier": 1.0, "num_experts": 8, "num_experts_per_tok": 2},
        fixed={"norm_topk_prob": True, "mlp_bias": False},
        spelled=(("num_local_experts", "num_experts"), _EXPERT_WIDTH),
        reads=(*GRANITE.values(), *_EXPERT_KEYS, "shared_intermediate_size"),
        has_windows=False,
        gguf_keys={**GRANITE, **_GGUF_EXPERTS, GGUF_SHARED: "shared_intermediate_size"},
        gguf_pairs=True,
        experts=_GRANITE_EXPERTS,
    ),
    Family(
        model_type="ernie4_5_moe",
        architecture="Ernie4_5_MoeForCausalLM",
        gguf="ernie4_5-moe",
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 4,
            "rope_theta": 5e5,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1536,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
        },
        fixed={
            "norm_topk_prob": True,
            "score_correction": True,
            "attention_bias": False,
            "mlp_bias": False,
        },
        spelled=(
            *(("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok")),
            ("moe_num_shared_experts", "n_shared_experts"),
            ("moe_layer_start_index", "first_k_dense_replace"),
            ("moe_layer_interval", "decoder_sparse_step"),
        ),
        reads=(
            *_ONE_NAME,
            *("moe_num_experts", "moe_k", "moe_num_shared_experts", "moe_layer_start_index"),
            *("moe_layer_interval", "moe_layer_end_index"),
        ),
        has_windows=False,
        gguf_keys={
            **_GGUF_EXPERTS,
            **_GGUF_DENSE,
            "interleave_moe_layer_step": "decoder_sparse_step",
            GGUF_SHARED: GGUF_SHARED,  # the experts' number and width say it
        },
        gguf_absent=_GGUF_NO_DENSE,
        pairs=True,
        experts=_SHARED_EXPERTS,
        more_layers=True,
    ),
    Family(
        model_type="glm4_moe",
        architecture="Glm4MoeForCausalLM",
        gguf="glm4moe",
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
        },
        fixed={"score_correction": True, "scoring_func": "sigmoid", "mlp_bias": False},
        spelled=(("use_qk_norm", "qk_layernorm"), ("n_routed_experts", "num_experts")),
        reads=(
            *(*_ONE_NAME, "n_routed_experts", "n_shared_experts", "first_k_dense_replace"),
            *("partial_rotary_factor", "routed_scaling_factor", "use_qk_norm", "scoring_func"),
        ),
        has_windows=False,
        gguf_keys={
            **_GGUF_EXPERTS,
            **_GGUF_DENSE,
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
            "expert_gating_func": "scoring_func",
        },
        gguf_absent={**_GGUF_NO_DENSE, "expert_weights_norm": False},
        gguf_implied=_glm_scores,
        gguf_names={"post_attention_norm": "post_attention_layernorm", "ffn_norm": "ffn_norm"},
        experts=_SHARED_EXPERTS,
        more_layers=True,
    ),
    Family(
        model_type="gpt_oss",
        architecture="GptOssForCausalLM",
        gguf="gpt-oss",
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_parameters": _GPT_OSS_YARN,
            "attention_bias": True,
            "num_experts": 128,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        },
        fixed={
            "mlp_bias": False,
            "moe_bias": True,
            "attention_sinks": True,
            "norm_topk_prob": True,
        },
        spelled=(_EXPERT_WIDTH,),
        reads=("swiglu_alpha", "swiglu_limit", *_EXPERT_KEYS),
        gguf_keys=_GGUF_EXPERTS,
        gguf_absent={"attention.sliding_window_pattern": 2},
        gguf_implied=_gpt_oss_scaling,
        gguf_names={
            "attn_sinks": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "ffn_norm",
        },
        experts=ExpertNames(
            "mlp.router",
            *(f"mlp.experts.{name}_proj" for name in ("gate_up", "gate_up", "down")),
            alternate=True,
        ),
    ),
)
