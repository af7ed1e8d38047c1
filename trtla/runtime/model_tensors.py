"""A checkpoint's tensors on their way into a model: by name, each taken once and then released.

Names are TensorRT-LLM's: fused qkv, `mlp.fc` is gate_proj, `mlp.gate` is up_proj.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from trtla.config import CheckpointConfig
from trtla.e4m3 import E4M3, dequantize
from trtla.errors import TrtlaError


class ModelTensors:
    """The tensors of a complete model.

    Args:
        weights: (checkpoint name, tensor) of the complete model; each is placed in turn.
        place: brings a tensor to the model's device and type; FP8 weights and scales stay as they
            are.
        dtype: of FP8 weights that are dequantised.
    """

    def __init__(
        self,
        weights: Iterable[tuple[str, Tensor]],
        place: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self._dtype = dtype
        self._tensors = {
            name.removeprefix("transformer."): tensor if _is_fp8(name, tensor) else place(tensor)
            for name, tensor in weights
        }

    def take(self, name: str) -> Tensor:
        """Remove a tensor; raises `TrtlaError` where there is none."""
        try:
            return self._tensors.pop(name)
        except KeyError:
            raise _missing(name) from None

    def layer(self, index: int) -> LayerTensors:
        """Remove the tensors of a layer."""
        prefix = f"layers.{index}."
        names = [name for name in self._tensors if name.startswith(prefix)]
        own = {name.removeprefix(prefix): self._tensors.pop(name) for name in names}
        return LayerTensors(prefix, own, self._dtype)

    def kv_scales(self, config: CheckpointConfig) -> list[float]:
        """Every layer's scale of keys and values; none where the cache is not FP8."""
        layers = range(config.num_hidden_layers) if config.fp8_kv_cache else ()
        names = [f"layers.{layer}.attention.kv_cache_scaling_factor" for layer in layers]
        return [self.take(name).item() for name in names]


def _is_fp8(name: str, tensor: Tensor) -> bool:
    return tensor.dtype == E4M3 or name.endswith("_scaling_factor")


def _missing(name: str) -> TrtlaError:
    return TrtlaError(f"the weights lack transformer.{name}", "build the engine again")


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """One layer's tensors by their names within it; raises `TrtlaError` for those it lacks."""

    prefix: str
    tensors: dict[str, Tensor]
    dtype: torch.dtype

    def __getitem__(self, name: str) -> Tensor:
        """A tensor that stays."""
        try:
            return self.tensors[name]
        except KeyError:
            raise _missing(f"{self.prefix}{name}") from None

    def is_fp8(self, name: str) -> bool:
        """Whether a weight is kept in FP8."""
        return self[f"{name}.weight"].dtype == E4M3

    def take(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Remove a weight [out, in] as it is, and its bias."""
        weight = self[f"{name}.weight"]
        del self.tensors[f"{name}.weight"]
        return weight, self.tensors.pop(f"{name}.bias", None)

    def take_plain(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Remove a weight [out, in], dequantised where it is FP8, and its bias."""
        fp8 = self.is_fp8(name)
        weight, bias = self.take(name)
        if not fp8:
            return weight, bias
        return dequantize(weight, self[f"{name}.weights_scaling_factor"], self.dtype), bias
