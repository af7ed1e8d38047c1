"""Loading one rank of a Llama checkpoint; TensorRT-LLM models/modeling_utils.py, parameter.py.

Stricter than the real one in one point: a tensor of another type than the checkpoint's is refused,
where the real one warns.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file

from ..._deprecation import emit_engine_arch_deprecation
from ...logger import logger
from ..modeling_utils import PretrainedConfig
from ._tensors import Need, needed
from .config import LLaMAConfig

_ROUNDED = ("qkv.weight", "dense.weight", "fc.weight", "proj.weight", "gate.weight")
_EMBEDDING, _HEAD = "transformer.vocab_embedding.weight", "lm_head.weight"


class LLaMAForCausalLM:
    """One rank of a Llama: its configuration and tensors."""

    config_class: ClassVar[type[PretrainedConfig]] = LLaMAConfig

    def __init__(self, config: PretrainedConfig) -> None:
        if config.__dict__["hidden_act"] != "silu":
            raise ValueError(f"hidden_act {config.__dict__['hidden_act']} is not Llama's silu")
        self.config = config
        self.tensors: dict[str, torch.Tensor] = {}

    @classmethod
    def from_checkpoint(
        cls,
        ckpt_dir: str | Path,
        rank: int | None = None,
        config: PretrainedConfig | None = None,
    ) -> LLaMAForCausalLM:
        """Load a rank, by its number or by the rank in the configuration."""
        emit_engine_arch_deprecation("LLaMAForCausalLM.from_checkpoint")
        if config is None:
            config = PretrainedConfig.from_checkpoint(ckpt_dir)
        if rank is not None:
            config.set_rank(rank)
        path = Path(ckpt_dir) / f"rank{config.mapping.rank}.safetensors"
        if not path.is_file():
            raise AssertionError(f"{path} does not exist")
        if not isinstance(config, cls.config_class):
            raise AssertionError(f"Unsupported model architecture: {config.architecture}")
        model = cls(config)
        model.load(load_file(path))
        return model

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        need = needed(self.config)
        weights = dict(weights)
        bits = {"W8A16": 8, "W4A16": 4}.get(str(self.config.quant_algo))
        for name in [name for name in weights if bits and name.endswith(_ROUNDED)]:
            weights[name] = _rounded(weights[name], bits or 0)
        tied = self.config.__dict__["tie_word_embeddings"] and _EMBEDDING in weights
        if _HEAD in need and _HEAD not in weights and tied:
            weights[_HEAD] = _rows_of_rank(weights[_EMBEDDING], need[_HEAD], self.config)
        missing = need.keys() - weights.keys()
        if missing:
            raise RuntimeError(f"Required but not provided tensors:{set(missing)}")
        extra = weights.keys() - need.keys()
        if extra:
            logger.warning(f"Provided but not required tensors: {set(extra)}")
        for name, rule in need.items():
            self.tensors[name] = _checked(name, weights[name], rule)


def _rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The numbers that symmetric_quantize leaves: per output, the largest becomes 2^(bits-1)."""
    last = 1 << (bits - 1)
    scales = weight.float().abs().amax(1, keepdim=True) / last
    codes = (weight.float() / scales).round().clamp(-last, last - 1)
    return (codes * scales).to(weight.dtype)


def _rows_of_rank(embedding: torch.Tensor, need: Need, config: PretrainedConfig) -> torch.Tensor:
    rows, rank = need.shape[0], config.mapping.tp_rank
    padded = torch.zeros(rows * config.mapping.tp_size, need.shape[1], dtype=embedding.dtype)
    padded[: len(embedding)] = embedding
    return padded[rank * rows : (rank + 1) * rows].clone()


def _checked(name: str, tensor: torch.Tensor, rule: Need) -> torch.Tensor:
    if tuple(tensor.shape) != rule.shape:
        raise AssertionError(
            f"The value updated is not the same shape as the original. {name}: "
            f"Updated: {tuple(tensor.shape)}, original: {rule.shape}"
        )
    if tensor.dtype not in rule.dtypes:
        raise AssertionError(
            f"Parameter {name} was initialized as {rule.dtypes[0]} but set to {tensor.dtype}"
        )
    return tensor
