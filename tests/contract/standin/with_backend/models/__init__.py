"""Models and their configurations; TensorRT-LLM models. The stand-in has Llama only."""

from __future__ import annotations

from .llama.config import LLaMAConfig
from .llama.model import LLaMAForCausalLM
from .modeling_utils import PretrainedConfig, QuantConfig, SpeculativeDecodingMode

MODEL_MAP = {
    "LlamaForCausalLM": LLaMAForCausalLM,
    "LLaMAForCausalLM": LLaMAForCausalLM,
    "MistralForCausalLM": LLaMAForCausalLM,
}

__all__ = [
    "MODEL_MAP",
    "LLaMAConfig",
    "LLaMAForCausalLM",
    "PretrainedConfig",
    "QuantConfig",
    "SpeculativeDecodingMode",
]
