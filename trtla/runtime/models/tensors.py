"""A checkpoint's tensors on their way into a model, one by one: plain, in FP8 or in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from trtla.errors import TrtlaError
from trtla.formats.blocks import BlockTensor
from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import E4M3, Weight, dequantize


def numbers(weight: Weight) -> Tensor:
    """A weight's numbers; float32 where it is in blocks."""
    return weight.dequantize() if isinstance(weight, BlockTensor) else weight


class ModelTensors:
    """The tensors of a complete model."""

    def __init__(
        self,
        weights: Iterable[tuple[str, Weight]],
        place: Callable[[Weight], Weight],
        dtype: torch.dtype,
    ) -> None:
        self._dtype = dtype
        self._tensors = {
            name.removeprefix("transformer."): tensor if _is_fp8(name, tensor) else place(tensor)
            for name, tensor in weights
        }

    def vector(self, name: str) -> Tensor:
        """Remove a tensor that is never in blocks; raises `TrtlaError` where there is none."""
        return numbers(self._take(name))

    def _take(self, name: str) -> Weight:
        try:
            return self._tensors.pop(name)
        except KeyError:
            raise _missing(name) from None

    def ends(self, config: CheckpointConfig) -> tuple[Weight, Weight]:
        """Remove the embedding and lm_head; they are one object where the model ties them."""
        embedding = self._take("vocab_embedding.weight")
        if not config.tie_word_embeddings:
            return embedding, self._take("lm_head.weight")
        head = self._tensors.pop("lm_head.weight", embedding)
        return embedding, embedding if _equal(head, embedding) else head

    def layer(self, index: int) -> LayerTensors:
        prefix = f"layers.{index}."
        names = [name for name in self._tensors if name.startswith(prefix)]
        own = {name.removeprefix(prefix): self._tensors.pop(name) for name in names}
        return LayerTensors(prefix, own, self._dtype)

    def kv_scales(self, config: CheckpointConfig) -> list[float]:
        """Every layer's scale of keys and values; none where the cache is not FP8."""
        layers = range(config.num_hidden_layers) if config.fp8_kv_cache else ()
        names = [f"layers.{layer}.attention.kv_cache_scaling_factor" for layer in layers]
        return [self.vector(name).item() for name in names]


def _equal(one: Weight, other: Weight) -> bool:
    if isinstance(one, BlockTensor) and isinstance(other, BlockTensor):
        return one.kind == other.kind and torch.equal(one.rows, other.rows)
    return one is other or torch.equal(numbers(one), numbers(other))


def _is_fp8(name: str, tensor: Weight) -> bool:
    return (isinstance(tensor, Tensor) and tensor.dtype == E4M3) or name.endswith("_scaling_factor")


def _missing(name: str) -> TrtlaError:
    return TrtlaError(f"the weights lack transformer.{name}", "build the engine again")


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """One layer's tensors by their names within it; raises `TrtlaError` for those it lacks."""

    prefix: str
    tensors: dict[str, Weight]
    dtype: torch.dtype

    def __getitem__(self, name: str) -> Tensor:
        """A tensor that stays, and is never in blocks."""
        return numbers(self._weight(name))

    def _weight(self, name: str) -> Weight:
        try:
            return self.tensors[name]
        except KeyError:
            raise _missing(f"{self.prefix}{name}") from None

    @property
    def is_fused(self) -> bool:
        return "attention.qkv.weight" in self.tensors

    def is_fp8(self, name: str) -> bool:
        return _is_fp8(name, self._weight(f"{name}.weight"))

    def take(self, name: str) -> tuple[Weight, Tensor | None]:
        """Remove a weight [out, in] as it is, and its bias."""
        weight = self._weight(f"{name}.weight")
        del self.tensors[f"{name}.weight"]
        return weight, self._bias(name)

    def _bias(self, name: str) -> Tensor | None:
        bias = self.tensors.pop(f"{name}.bias", None)
        return None if bias is None else numbers(bias)

    def take_plain(self, name: str) -> tuple[Weight, Tensor | None]:
        """Remove a weight [out, in], dequantised where it is FP8, and its bias."""
        fp8 = self.is_fp8(name)
        weight, bias = self.take(name)
        if not fp8:
            return weight, bias
        scale = self[f"{name}.weights_scaling_factor"]
        return dequantize(numbers(weight), scale, self.dtype), bias

    def take_qkv(self) -> tuple[list[Weight], Tensor | None]:
        """Remove the weights of q, k and v, one or three, and the bias of all."""
        if self.is_fused:
            weight, bias = self.take_plain("attention.qkv")
            return [weight], bias
        parts = [self.take(f"attention.{name}")[0] for name in "qkv"]
        return parts, self._bias("attention.qkv")
