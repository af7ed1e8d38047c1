"""Models and their configurations; TensorRT-LLM models. The stand-in has Llama and Qwen2."""

from __future__ import annotations

from .llama.config import LLaMAConfig
from .llama.model import LLaMAForCausalLM
from .modeling_utils import PretrainedConfig, QuantConfig, SpeculativeDecodingMode
from .qwen import QWenForCausalLM

MODEL_MAP = {
    "LlamaForCausalLM": LLaMAForCausalLM,
    "LLaMAForCausalLM": LLaMAForCausalLM,
    "MistralForCausalLM": LLaMAForCausalLM,
    "Qwen2ForCausalLM": QWenForCausalLM,
}

__all__ = ["MODEL_MAP", "LLaMAConfig", "LLaMAForCausalLM", "PretrainedConfig", "QuantConfig"]
__all__ += ["SpeculativeDecodingMode"]
