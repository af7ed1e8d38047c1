"""PluginConfig, as slotted dataclass up to 1.0 and as pydantic model from 1.1; plugin/plugin.py.

The dataclass takes no constructor arguments at all (its fields are `init=False`) and no unknown
attribute. The pydantic model ignores unknown arguments and validates assignments. In both `auto`
reads as `dtype`, and the GPU is looked at for a check of architectures.
"""

from __future__ import annotations

import argparse
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model, model_validator

from ._utils import get_sm_version
from ._version import at_least
from .logger import logger

_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", None)
_FP8 = ("fp8", None)
_GEMM = ("auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", None)

_INTERNAL = (
    "qserve_gemm_plugin",
    "identity_plugin",
    "weight_only_groupwise_quant_matmul_plugin",
    "weight_only_quant_matmul_plugin",
    "smooth_quant_gemm_plugin",
    "layernorm_quantization_plugin",
    "rmsnorm_quantization_plugin",
)
"""Plugins that the command line does not have."""

CHOICES: dict[str, tuple[str | None, tuple[str | None, ...]]] = {
    **dict.fromkeys(
        (
            "bert_attention_plugin",
            "gpt_attention_plugin",
            "nccl_plugin",
            "moe_plugin",
            "mamba_conv1d_plugin",
        ),
        ("auto", _DTYPES),
    ),
    "gemm_plugin": (None, _GEMM),
    **dict.fromkeys(("fp8_rowwise_gemm_plugin", "lora_plugin"), (None, _DTYPES)),
    **dict.fromkeys(
        ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"),
        (None, _FP8),
    ),
    **dict.fromkeys(_INTERNAL, (None, _DTYPES)),
    "gemm_allreduce_plugin": (None, ("float16", "bfloat16", None)),
}
"""Plugins with a type: default and allowed values."""

_ON = (
    "smooth_quant_plugins",
    "context_fmha",
    "remove_input_padding",
    "use_paged_context_fmha",
    "use_fp8_context_fmha",
    "paged_state",
    "use_fused_mlp",
)
_OFF = (
    "dora_plugin",
    "quantize_per_token_plugin",
    "quantize_tensor_plugin",
    "bert_context_fmha_fp32_acc",
    "norm_quant_fusion",
    "reduce_fusion",
    "user_buffer",
    "fuse_fp4_quant",
    "multiple_profiles",
    "streamingllm",
    "manage_weights",
    "pp_reduce_scatter",
)
SWITCHES = {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)}

DEFAULTS: dict[str, Any] = {
    "dtype": "float16",
    **{name: default for name, (default, _) in CHOICES.items()},
    **SWITCHES,
    "paged_kv_cache": None,
    "tokens_per_block": 32,
}

NOT_ON_COMMAND_LINE = (
    *_INTERNAL,
    "dtype",
    "smooth_quant_plugins",
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


cli_plugin_args = [name for name in DEFAULTS if name not in NOT_ON_COMMAND_LINE]

_NOT_ON_SM100 = ("gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin")


def _check_architecture(config: Any) -> None:
    if get_sm_version() != 100:
        return
    for name in _NOT_ON_SM100:
        if getattr(config, name):
            raise NotImplementedError(f"{name}={getattr(config, name)} is not supported on SM 100.")


class _Slotted:
    """The dataclass of releases up to 1.0."""

    __slots__ = tuple(f"_{name}" for name in DEFAULTS)

    def __init__(self) -> None:
        for name, value in DEFAULTS.items():
            object.__setattr__(self, f"_{name}", value)

    def __getattr__(self, name: str) -> Any:
        if name not in DEFAULTS:
            raise AttributeError(f"'PluginConfig' object has no attribute '{name}'")
        value = object.__getattribute__(self, f"_{name}")
        return object.__getattribute__(self, "_dtype") if value == "auto" else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in DEFAULTS:
            raise AttributeError(f"'PluginConfig' object has no attribute '{name}'")
        wrong = problem(name, value)
        if wrong:
            raise AssertionError(wrong)
        object.__setattr__(self, f"_{name}", value)
        logger.info(f"Set {name} to {value}.")

    def __getstate__(self) -> dict[str, Any]:
        return self.to_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, f"_{name}", value)

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> _Slotted:
        """With the fields that the arguments have; the others are ignored."""
        made = cls()
        for name, value in vars(args).items():
            if name in DEFAULTS:
                setattr(made, name, switched(name, value))
        return made

    def to_dict(self) -> dict[str, Any]:
        """All fields as they are stored, `auto` included."""
        return {name: object.__getattribute__(self, f"_{name}") for name in DEFAULTS}


class _Checked(BaseModel):
    """The base of the pydantic model of releases from 1.1."""

    model_config = ConfigDict(validate_assignment=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _switch(cls, values: Any) -> Any:
        values = {name: switched(name, value) for name, value in dict(values).items()}
        for name, value in values.items():
            wrong = problem(name, value)
            if wrong:
                raise ValueError(wrong)
        return values

    @model_validator(mode="after")
    def _validate_architecture(self) -> _Checked:
        _check_architecture(self)
        return self

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return self.dtype if name != "dtype" and value == "auto" else value

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> _Checked:
        return cls(**vars(args))

    def to_dict(self) -> dict[str, Any]:
        """All fields as they are stored, `auto` included."""
        return self.model_dump(mode="json")


def _modern() -> Any:
    fields: dict[str, Any] = {name: (Any, default) for name, default in DEFAULTS.items()}
    return create_model("PluginConfig", __base__=_Checked, **fields)


PluginConfig: Any = _modern() if at_least(1, 1) else type("PluginConfig", (_Slotted,), {})
PluginConfig.__module__ = __name__


def add_plugin_argument(parser: argparse.ArgumentParser) -> None:
    for name in cli_plugin_args:
        default = DEFAULTS[name]
        if name in SWITCHES:
            shown = "enable" if default else "disable"
            parser.add_argument(f"--{name}", default=shown, choices=["enable", "disable"])
        elif name in CHOICES:
            values = [value or "disable" for value in CHOICES[name][1]]
            shown = default if name == "gemm_plugin" else default or "disable"
            parser.add_argument(f"--{name}", default=shown, choices=values)
        else:
            parser.add_argument(f"--{name}", type=int, default=default)
