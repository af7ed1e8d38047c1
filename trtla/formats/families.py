"""The families of models that are read, each an entry of `DECODERS` or run as it is.

An entry has a family's names, the values of keys that its config.json may lack, the keys that
change the arithmetic, and the form of weights in its files. All other code reads only the fields of
the model's config.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

ENCODER_DECODERS = {
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}
"""model_type -> architecture of the families that are run as they are."""

FULL, SLIDING = "full_attention", "sliding_attention"
LAYER_TYPES = (FULL, SLIDING)
"""Kinds of attention that layers may have, by transformers' names."""

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


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """The names of a layer's experts in Hugging Face's files; {} stands for an expert's number.

    A name without it is of one tensor of all experts. Where it is that of gate and up, both halves
    of each expert follow each other, or their outputs alternate.
    """

    router: str = "mlp.gate"
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    """Those of the expert that all tokens share."""
    alternate: bool = field(default=False, kw_only=True)
    """The outputs of gate and up alternate, and matrices that are not in blocks are stored as
    [inputs, outputs]."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of decoders."""

    model_type: str
    architecture: str
    """Hugging Face's names."""
    gguf: str
    """The architecture of its GGUF files."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that a config.json lacks."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values that always hold: a config.json that names another one, to any effect, is refused."""
    spelled: tuple[tuple[str, str], ...] = ()
    """Keys of its config.json, and Llama's name, which means nothing there."""
    reads: tuple[str, ...] = ()
    """Keys of `ARITHMETIC` that its config.json may have."""
    has_windows: bool = True
    """The keys of sliding windows have a meaning."""
    gguf_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of its GGUF files, and their names in config.json."""
    gguf_absent: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that its GGUF files lack."""
    gguf_implied: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda keys: {}
    """Computes keys that its GGUF files leave to the reader, from the other keys of config.json."""
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    """Weights of a layer whose names in its GGUF files differ from Llama's."""
    gguf_pairs: bool = False
    """Numbers that rotary embedding rotates together lie side by side in its GGUF files."""
    pairs: bool = False
    """They do in Hugging Face's files."""
    fused: bool = False
    """q, k and v are one weight in its files, and gate and up another."""
    experts: ExpertNames | None = None
    """Names of the weights of experts in its files; None: its layers are dense."""
    more_layers: bool = False
    """Its files may have layers that predict further tokens, behind the last one or in `mtp`."""
    trtllm: str | None = None
    """The folder of its converter in TensorRT-LLM, whose lookahead decoding runs it."""


_WINDOW = 4096  # of MistralConfig and the Qwens' configs
_MISTRAL = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "sliding_window": _WINDOW,
}
_QWEN = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "max_window_layers": 28,
    "use_sliding_window": False,
    "sliding_window": _WINDOW,
}
_GRANITE = {
    "embedding_scale": "embedding_multiplier",
    "attention.scale": "attention_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
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
_GGUF_SHARED = "expert_shared_feed_forward_length"
_GRANITE_EXPERTS = ExpertNames(
    router="block_sparse_moe.router.layer",
    gate="block_sparse_moe.input_linear",
    up="block_sparse_moe.input_linear",
    down="block_sparse_moe.output_linear",
    shared_gate="shared_mlp.input_linear",
    shared_up="shared_mlp.input_linear",
    shared_down="shared_mlp.output_linear",
)
_ALL_WINDOWED = {"use_sliding_window": True, "max_window_layers": 0}
_NO_BIASES = {"attention_bias": False, "mlp_bias": False}


def _gemma3_scale(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The scale as in llama.cpp: only the model of 27B, which has 62 layers, is an exception."""
    large = keys["num_hidden_layers"] == 62
    width = keys["hidden_size"] // keys["num_attention_heads"] if large else keys["head_dim"]
    return {"query_pre_attn_scalar": width}


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


DECODERS = (
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
        fixed={**_ALL_WINDOWED, **_NO_BIASES},
        gguf_pairs=True,
        trtllm="llama",
    ),
    Family(
        model_type="ministral",
        architecture="MinistralForCausalLM",
        gguf="llama",
        absent=_MISTRAL,
        fixed={**_ALL_WINDOWED, **_NO_BIASES},
    ),
    Family(
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        gguf="qwen2",
        absent=_QWEN,
        fixed={"attention_bias": True, "mlp_bias": False},
        trtllm="qwen",
    ),
    Family(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        gguf="qwen3",
        absent={**_QWEN, "head_dim": 128},
        fixed={"qk_layernorm": True, "mlp_bias": False},
        reads=("qk_layernorm",),
    ),
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
        fixed={**_ALL_WINDOWED, **_NO_BIASES, "layer_types": None, "norm_topk_prob": True},
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
            **{key: value for key, value in _QWEN.items() if key != "max_window_layers"},
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
            "sliding_window": _WINDOW,
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
        gguf_keys={**_GGUF_EXPERTS, _GGUF_SHARED: "shared_intermediate_size"},
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
        reads=(*_GRANITE.values(), *_EXPERT_KEYS),
        has_windows=False,
        gguf_keys={**_GRANITE, **_GGUF_EXPERTS},
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
        reads=(*_GRANITE.values(), *_EXPERT_KEYS, "shared_intermediate_size"),
        has_windows=False,
        gguf_keys={**_GRANITE, **_GGUF_EXPERTS, _GGUF_SHARED: "shared_intermediate_size"},
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
            _GGUF_SHARED: _GGUF_SHARED,  # the experts' number and width say it
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
            *("partial_rotary_factor", "routed_scaling_factor", "use_qk_norm"),
        ),
        has_windows=False,
        gguf_keys={
            **_GGUF_EXPERTS,
            **_GGUF_DENSE,
            "expert_weights_scale": "routed_scaling_factor",
            "expert_gating_func": "expert_gating_func",
        },
        gguf_absent=_GGUF_NO_DENSE,
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
    Family(
        model_type="granite",
        architecture="GraniteForCausalLM",
        gguf="granite",
        absent={"attention_multiplier": 1.0},
        reads=tuple(_GRANITE.values()),
        has_windows=False,
        gguf_keys=_GRANITE,
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
        fixed={**_ALL_WINDOWED, **_NO_BIASES, "layer_types": None},
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


def unknown_arithmetic(
    keys: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]], known: Collection[str]
) -> str | None:
    """The first key that would change the arithmetic and is not known; None: there is none."""
    for key, values in neutral.items():
        value = keys.get(key)
        if key not in known and value is not None and value not in values:
            return key
    return None
