"""A Llama checkpoint's config.json; TensorRT-LLM models/llama/config.py."""

from __future__ import annotations

from typing import Any, ClassVar

from ..modeling_utils import PretrainedConfig


class LLaMAConfig(PretrainedConfig):
    """The keys that Llama adds. `hidden_act` has no default here."""

    _own: ClassVar[dict[str, Any]] = {
        "mlp_bias": False,
        "attn_bias": False,
        "rotary_base": 10000.0,
        "rotary_scaling": None,
        "residual_mlp": False,
        "disable_weight_only_quant_plugin": False,
        "moe": None,
        "remove_duplicated_kv_heads": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "fc_after_embed": False,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "layer_idx_offset": 0,
        "rotary_pct": 1.0,
        "has_partial_lora_mask": False,
    }

    def __init__(self, **values: Any) -> None:
        if "hidden_act" not in values:
            raise TypeError("__init__() missing 1 required keyword-only argument: 'hidden_act'")
        super().__init__(**values)
