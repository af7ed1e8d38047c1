"""The families of models that are read, each an entry of `DECODERS` or run as it is.

An entry has a family's names, the values of keys that its config.json may lack, the keys that
change the arithmetic, and the form of weights in its files. All other code reads only the fields of
the model's config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtla.formats.expert_families import MIXTURES
from trtla.formats.family import ALL_WINDOWED, GRANITE, NO_BIASES, QWEN, WINDOW, Family

ENCODER_DECODERS = {
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}
"""model_type -> architecture of the families that are run as they are."""
_MISTRAL = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "sliding_window": WINDOW,
}


def _gemma3_scale(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The scale as in llama.cpp: only the model of 27B, which has 62 layers, is an exception."""
    large = keys["num_hidden_layers"] == 62
    width = keys["hidden_size"] // keys["num_attention_heads"] if large else keys["head_dim"]
    return {"query_pre_attn_scalar": width}


_DENSE = (
    Family(
        model_type="llama",
        architecture="LlamaForCausalLM",
        gguf="llama",
        has_windows=False,
        gguf_pairs=True,
        trtllm="llama",
    ),
    Family(
        model_type="mistral",
        architecture="MistralForCausalLM",
        gguf="llama",
        absent=_MISTRAL,
        fixed={**ALL_WINDOWED, **NO_BIASES},
        gguf_pairs=True,
        trtllm="llama",
    ),
    Family(
        model_type="ministral",
        architecture="MinistralForCausalLM",
        gguf="llama",
        absent=_MISTRAL,
        fixed={**ALL_WINDOWED, **NO_BIASES},
    ),
    Family(
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        gguf="qwen2",
        absent=QWEN,
        fixed={"attention_bias": True, "mlp_bias": False},
        trtllm="qwen",
    ),
    Family(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        gguf="qwen3",
        absent={**QWEN, "head_dim": 128},
        fixed={"qk_layernorm": True, "mlp_bias": False},
        reads=("qk_layernorm",),
    ),
    Family(
        model_type="granite",
        architecture="GraniteForCausalLM",
        gguf="granite",
        absent={"attention_multiplier": 1.0},
        reads=tuple(GRANITE.values()),
        has_windows=False,
        gguf_keys=GRANITE,
        gguf_pairs=True,
    ),
    Family(
        model_type="smollm3",
        architecture="SmolLM3ForCausalLM",
        gguf="smollm3",
        absent={
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": 4,
            "use_sliding_window": False,
        },
        reads=("no_rope_layers", "no_rope_layer_interval"),
        gguf_pairs=True,
    ),
    Family(
        model_type="phi3",
        architecture="Phi3ForCausalLM",
        gguf="phi3",
        absent={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        fixed={**ALL_WINDOWED, **NO_BIASES, "layer_types": None},
        reads=("partial_rotary_factor",),
        gguf_names={"ffn_up": "mlp.gate_up_proj"},
        fused=True,
    ),
    Family(
        model_type="ernie4_5",
        architecture="Ernie4_5ForCausalLM",
        gguf="ernie4_5",
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 2,
            "rope_theta": 5e5,
            "rms_norm_eps": 1e-5,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
        spelled=(("use_bias", "attention_bias"), ("use_bias", "mlp_bias")),
        reads=("use_bias",),
        has_windows=False,
        pairs=True,
    ),
    Family(
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        gguf="gemma3",
        absent={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "tie_word_embeddings": True,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "hidden_act": "gelu_pytorch_tanh",
        },
        fixed={
            "qk_layernorm": True,
            "sandwich_norms": True,
            "offset_norms": True,
            "scales_embedding": True,
            "use_sliding_window": True,
            "mlp_bias": False,
        },
        spelled=(("hidden_activation", "hidden_act"),),
        reads=("query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern"),
        gguf_keys={"rope.freq_base_swa": "rope_local_base_freq"},
        gguf_absent={"attention.sliding_window_pattern": 6},
        gguf_implied=_gemma3_scale,
        gguf_names={
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
)

DECODERS = (*_DENSE, *MIXTURES)
ARCHITECTURES = tuple(family.architecture for family in DECODERS)
BY_ARCHITECTURE = {family.architecture: family for family in DECODERS}
BY_GGUF = {family.gguf: family for family in reversed(DECODERS)}
"""Architecture of a GGUF file -> family, the first of several: a Mistral's file is a llama."""
MODEL_TYPES = {family.model_type: family.architecture for family in DECODERS} | ENCODER_DECODERS
"""model_type -> architecture."""
_NAMES = (*ARCHITECTURES[:-1], f"and {ARCHITECTURES[-1]}")
FAMILIES = ", ".join(_NAMES[:-1]) + f" {_NAMES[-1]}"
"""The names of the decoders in a list, for sentences."""


def architecture(data: Any) -> Any:
    """The architecture that a config.json of Hugging Face names first, else its model_type's."""
    names, kind = data.get("architectures"), data.get("model_type")
    return names[0] if isinstance(names, list) and names else MODEL_TYPES.get(str(kind), kind)


def stored_architecture(data: Mapping[str, Any]) -> Any:
    """The architecture that a config.json of any kind of folder names."""
    inner = data.get("pretrained_config", data)
    return inner.get("architecture") or architecture(inner) if isinstance(inner, dict) else None


def spelled(architecture: str) -> str:
    """Hugging Face's spelling of the architecture that a checkpoint names."""
    return architecture.replace("LLaMA", "Llama")
