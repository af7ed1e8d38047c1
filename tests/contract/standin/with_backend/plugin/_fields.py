"""The fields of PluginConfig: defaults and what they take; TensorRT-LLM plugin/plugin.py."""

from __future__ import annotations

from typing import Any

_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", None)
_FP8 = ("fp8", None)
_GEMM = ("auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", None)

CHOICES: dict[str, tuple[str | None, tuple[str | None, ...]]] = {
    "bert_attention_plugin": ("auto", _DTYPES),
    "gpt_attention_plugin": ("auto", _DTYPES),
    "gemm_plugin": (None, _GEMM),
    "gemm_swiglu_plugin": (None, _FP8),
    "fp8_rowwise_gemm_plugin": (None, _DTYPES),
    "qserve_gemm_plugin": (None, _DTYPES),
    "identity_plugin": (None, _DTYPES),
    "nccl_plugin": ("auto", _DTYPES),
    "lora_plugin": (None, _DTYPES),
    "weight_only_groupwise_quant_matmul_plugin": (None, _DTYPES),
    "weight_only_quant_matmul_plugin": (None, _DTYPES),
    "smooth_quant_gemm_plugin": (None, _DTYPES),
    "layernorm_quantization_plugin": (None, _DTYPES),
    "rmsnorm_quantization_plugin": (None, _DTYPES),
    "moe_plugin": ("auto", _DTYPES),
    "mamba_conv1d_plugin": ("auto", _DTYPES),
    "low_latency_gemm_plugin": (None, _FP8),
    "low_latency_gemm_swiglu_plugin": (None, _FP8),
    "gemm_allreduce_plugin": (None, ("float16", "bfloat16", None)),
}
"""Plugins with a type: default and allowed values."""

SWITCHES: dict[str, bool] = {
    "dora_plugin": False,
    "smooth_quant_plugins": True,
    "quantize_per_token_plugin": False,
    "quantize_tensor_plugin": False,
    "context_fmha": True,
    "bert_context_fmha_fp32_acc": False,
    "remove_input_padding": True,
    "norm_quant_fusion": False,
    "reduce_fusion": False,
    "user_buffer": False,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": True,
    "fuse_fp4_quant": False,
    "multiple_profiles": False,
    "paged_state": True,
    "streamingllm": False,
    "manage_weights": False,
    "use_fused_mlp": True,
    "pp_reduce_scatter": False,
}

DEFAULTS: dict[str, Any] = {
    "dtype": "float16",
    **{name: default for name, (default, _) in CHOICES.items()},
    **SWITCHES,
    "paged_kv_cache": None,
    "tokens_per_block": 32,
}

NOT_ON_COMMAND_LINE = (
    "dtype",
    "qserve_gemm_plugin",
    "identity_plugin",
    "weight_only_groupwise_quant_matmul_plugin",
    "weight_only_quant_matmul_plugin",
    "smooth_quant_plugins",
    "smooth_quant_gemm_plugin",
    "layernorm_quantization_plugin",
    "rmsnorm_quantization_plugin",
    "quantize_per_token_plugin",
    "quantize_tensor_plugin",
    "paged_kv_cache",
    "manage_weights",
)


def switched(name: str, value: Any) -> Any:
    """What the command line's enable and disable mean for a field."""
    if value == "enable":
        return True
    if value == "disable":
        return False if name in SWITCHES or name == "paged_kv_cache" else None
    return value


def problem(name: str, value: Any) -> str | None:
    """Why a field does not take a value; None when it does."""
    if name == "dtype" and value in ("auto", None):
        return "Plugin dtype cannot be auto or None"
    if name in CHOICES and value not in CHOICES[name][1]:
        return f"Plugin {name} expects values in {list(CHOICES[name][1])}, got {value}"
    if name in SWITCHES and not isinstance(value, bool):
        return f"Plugin {name} expects {bool}, got {type(value)}"
    if name == "paged_kv_cache" and value not in (True, False, None):
        return f"Plugin {name} expects a bool or None, got {value}"
    if name == "tokens_per_block" and (not isinstance(value, int) or isinstance(value, bool)):
        return f"Plugin {name} expects {int}, got {type(value)}"
    return None
