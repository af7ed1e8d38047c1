"""Qwen2; TensorRT-LLM models/qwen/config.py and model.py.

Its layers are Llama's, but for the linear behind attention, which never has a bias.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .llama.model import LLaMAForCausalLM
from .modeling_utils import PretrainedConfig


class QWenConfig(PretrainedConfig):
    """The keys that Qwen adds. `qwen_type` and `seq_length` are read without having a default."""

    _own: ClassVar[dict[str, Any]] = {
        "mlp_bias": False,
        "attn_bias": True,
        "rotary_base": 10000.0,
        "rotary_scaling": None,
        "disable_weight_only_quant_plugin": False,
        "use_logn_attn": False,
        "moe": None,
        "num_labels": 1,
    }


class QWenForCausalLM(LLaMAForCausalLM):
    """One rank of a Qwen2."""

    config_class: ClassVar[type[PretrainedConfig]] = QWenConfig

    def __init__(self, config: PretrainedConfig) -> None:
        for name in ("seq_length", "qwen_type"):
            if name not in config.__dict__:
                raise AttributeError(f"'QWenConfig' object has no attribute '{name}'")
        super().__init__(config)
