"""Keys that change the arithmetic of some models, for which other families are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

ARITHMETIC: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), (1,)),
    **dict.fromkeys(("logit_scale", "partial_rotary_factor", "rotary_pct", "scale_emb"), (1,)),
    **dict.fromkeys(("attention_multiplier", "query_pre_attn_scalar", "clip_qkv"), ()),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (0,)),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), (0,)),
    **dict.fromkeys(("moe_num_experts", "moe_intermediate_size", "num_experts_per_tok"), (0,)),
    **dict.fromkeys(
        ("n_shared_experts", "moe_num_shared_experts", "n_group", "topk_group"), (0, 1)
    ),
    **dict.fromkeys(("first_k_dense_replace", "moe_layer_start_index"), (0,)),
    **dict.fromkeys(("moe_layer_end_index", "scoring_func", "topk_method"), ()),
    **dict.fromkeys(("routed_scaling_factor", "moe_layer_interval"), (1,)),
    **dict.fromkeys(("shared_intermediate_size", "shared_expert_intermediate_size"), (0,)),
    **dict.fromkeys(("swiglu_alpha", "swiglu_limit"), ()),
    "moe_norm_min": (1e-12,),
    **dict.fromkeys(("vision_config", "audio_config", "text_config"), ()),
    **dict.fromkeys(("use_qk_norm", "qk_norm", "qk_layernorm", "use_mrope"), (False,)),
    **dict.fromkeys(("use_parallel_residual", "parallel_attn", "use_bias"), (False,)),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "attention_chunk_size"), (0,)),
    **dict.fromkeys(("no_rope_layers", "no_rope_layer_interval", "rope_local_base_freq"), ()),
    **dict.fromkeys(("num_kv_shared_layers", "scale_depth", "dim_model_base"), (0,)),
    **dict.fromkeys(("use_bidirectional_attention", "attn_temperature_tuning"), (False,)),
    "is_causal": (True,),
    "sliding_window_pattern": (),
}
"""Keys of a config.json that change the arithmetic of families that know them, and the values with
which they change nothing; null is always one."""

GGUF_ARITHMETIC: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale"), (0, 1)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (0,)),
    **dict.fromkeys(("attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias"), (0,)),
    **dict.fromkeys(("expert_count", "leading_dense_block_count", "nextn_predict_layers"), (0,)),
    **dict.fromkeys(("expert_shared_count", "expert_shared_feed_forward_length"), (0,)),
    **dict.fromkeys(("expert_weights_scale", "expert_group_count", "expert_gating_func"), (0, 1)),
    **dict.fromkeys(("rope.freq_base_swa", "rope.dimension_sections"), ()),
    **dict.fromkeys(("attention.shared_kv_layers", "attention.temperature_scale"), (0,)),
    **dict.fromkeys(("attention.q_lora_rank", "attention.kv_lora_rank"), (0,)),
    **dict.fromkeys(("attention.output_scale", "rope.scaling.alpha"), (0, 1)),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    **dict.fromkeys(("use_parallel_residual",), (False,)),
    **dict.fromkeys(("attention.causal",), (True,)),
}
"""The same of a GGUF file's keys behind the name of its architecture."""


def unknown_arithmetic(
    keys: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]], known: Collection[str]
) -> str | None:
    """The first key that would change the arithmetic and is not known; None: there is none."""
    for key, values in neutral.items():
        value = keys.get(key)
        if key not in known and value is not None and value not in values:
            return key
    return None
