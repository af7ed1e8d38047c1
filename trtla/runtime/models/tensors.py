"""Hands a checkpoint's tensors to a model, one by one: plain, in FP8 or in blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy import ndarray

from trtla.errors import TrtlaError
from trtla.formats.blocks import BlockTensor
from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import (
    BFLOAT16,
    E4M3,
    FLOAT16,
    FLOAT32,
    StoredTensor,
    Weight,
    dequantize,
)

W = TypeVar("W")


class TensorKind(Protocol[W]):
    """The form in which a model keeps its weights: arrays, or tensors on a device."""

    def placed(self, weight: W) -> W:
        """Convert a weight to the type that it is kept in."""

    def is_fp8(self, weight: W) -> bool:
        """Return True for a weight in FP8, which stays until its scale is known."""

    def dequantized(self, weight: W, scale: W) -> W:
        """The numbers of an FP8 weight, in the arithmetic's type."""

    def equal(self, first: W, second: W) -> bool:
        """Return True if both hold the same numbers."""


class ModelTensors(Generic[W]):
    """The tensors of a complete model, or of one of its layers, which are taken one by one.

    Args:
        weights: (checkpoint name, tensor).
        kind: the form of the weights in memory.
        prefix: of the names, for errors.

    All methods raise `TrtlaError` for a tensor that is not there.
    """

    def __init__(
        self, weights: Iterable[tuple[str, W]], kind: TensorKind[W], prefix: str = ""
    ) -> None:
        self._kind, self._prefix = kind, prefix
        self._tensors = {
            name.removeprefix("transformer."): w if self._stays(name, w) else kind.placed(w)
            for name, w in weights
        }

    def _stays(self, name: str, weight: W) -> bool:
        as_it_is = name.endswith("_scaling_factor") or ".router." in name
        return bool(self._prefix) or as_it_is or self._kind.is_fp8(weight)

    def layer(self, index: int) -> ModelTensors[W]:
        """Remove the tensors of a layer and return them."""
        prefix = f"layers.{index}."
        names = [name for name in self._tensors if name.startswith(prefix)]
        tensors = [(name.removeprefix(prefix), self._tensors.pop(name)) for name in names]
        return ModelTensors(tensors, self._kind, prefix)

    def vector(self, name: str) -> W:
        """A tensor that stays, and is never in blocks: a norm's weight, or a scale."""
        try:
            return self._tensors[name]
        except KeyError:
            tensor = f"transformer.{self._prefix}{name}"
            raise TrtlaError(f"the weights lack {tensor}", "build the engine again") from None

    def ends(self, config: CheckpointConfig) -> tuple[W, W]:
        """Remove the embedding and lm_head; they are one object where the model ties them."""
        embedding = self._pop("vocab_embedding.weight")
        if not config.tie_word_embeddings:
            return embedding, self._pop("lm_head.weight")
        head = self._tensors.pop("lm_head.weight", embedding)
        same = head is embedding or self._kind.equal(head, embedding)
        return embedding, embedding if same else head

    def _pop(self, name: str) -> W:
        weight = self.vector(name)
        del self._tensors[name]
        return weight

    def is_fp8(self, name: str) -> bool:
        return self._kind.is_fp8(self.vector(f"{name}.weight"))

    def take(self, name: str) -> tuple[W, W | None]:
        """Remove a weight [out, in] as it is, and its bias."""
        return self._pop(f"{name}.weight"), self._tensors.pop(f"{name}.bias", None)

    def take_plain(self, name: str) -> tuple[W, W | None]:
        """Remove a weight [out, in], dequantised where it is FP8, and its bias."""
        fp8 = self.is_fp8(name)
        weight, bias = self.take(name)
        if not fp8:
            return weight, bias
        return self._kind.dequantized(weight, self.vector(f"{name}.weights_scaling_factor")), bias

    @property
    def has_router(self) -> bool:
        """Return True for a layer that is a mixture of experts."""
        return "mlp.router.weight" in self._tensors

    def take_router(self) -> tuple[W, W | None]:
        """Remove a mixture's router, [experts, hidden], and its bias, in the type that they are
        stored in."""
        return self.take("mlp.router")

    def take_beside_router(self, name: str) -> W | None:
        """Remove a vector that not all mixtures have, as `take_router`: `correction` [experts], or
        the gate of a shared expert, `shared_gate` [hidden]."""
        return self._tensors.pop(f"mlp.router.{name}", None)

    def take_qkv(self) -> tuple[list[W], W | None]:
        """Remove the weights of q, k and v, one or three, and the bias of all."""
        if "attention.qkv.weight" in self._tensors:
            weight, bias = self.take_plain("attention.qkv")
            return [weight], bias
        parts = [self.take(f"attention.{name}")[0] for name in "qkv"]
        return parts, self._tensors.pop("attention.qkv.bias", None)


OPTIONAL_VECTORS = ("q_norm", "k_norm", "attention_norm", "mlp_norm", "sinks")
"""The vectors of `layer_vectors` that not all models have."""


def layer_vectors(config: CheckpointConfig) -> dict[str, str]:
    """The norms and sinks of a layer by their use, and the names of their tensors."""
    first, middle = "input_layernorm.weight", "post_layernorm.weight"
    vectors = {"input_norm": first, "post_norm": middle}
    if config.sandwich_norms:
        vectors["post_norm"] = "pre_feedforward_layernorm.weight"
        vectors |= {"attention_norm": middle, "mlp_norm": "post_feedforward_layernorm.weight"}
    if config.qk_layernorm:
        vectors |= {f"{part}_norm": f"attention.{part}_layernorm.weight" for part in "qk"}
    if config.attention_sinks:
        vectors["sinks"] = "attention.sinks"
    return vectors


def numbers(weight: Weight | StoredTensor) -> ndarray:
    """A weight's numbers; float32 where it is in blocks."""
    tensor = weight.load() if isinstance(weight, StoredTensor) else weight
    return tensor.dequantize() if isinstance(tensor, BlockTensor) else tensor


_STORED = (FLOAT32, FLOAT16, BFLOAT16)
"""Types that plain weights can be kept in."""


def placed_type(dtype: np.dtype[Any], arithmetic: str) -> np.dtype[Any]:
    """The arithmetic's type, or one of fewer bits that holds the same numbers."""
    exact = dtype if dtype in _STORED else FLOAT32
    result: np.dtype[Any] = BFLOAT16 if arithmetic == "bfloat16" else exact
    return result


def placed(weight: ndarray, arithmetic: str) -> ndarray:
    """A plain weight in the type that it is kept in."""
    return weight.astype(placed_type(weight.dtype, arithmetic), copy=False)


@dataclass(frozen=True, slots=True)
class ArrayTensors:
    """Arrays, and matrices as they are: in blocks, or not read yet."""

    arithmetic: str
    """float32 or bfloat16."""

    def placed(self, weight: Weight | StoredTensor) -> Weight | StoredTensor:
        if isinstance(weight, StoredTensor) and len(weight.shape) == 1:
            weight = weight.load()
        return placed(weight, self.arithmetic) if isinstance(weight, ndarray) else weight

    def is_fp8(self, weight: Weight | StoredTensor) -> bool:
        return not isinstance(weight, BlockTensor) and weight.dtype == E4M3

    def dequantized(self, weight: Weight | StoredTensor, scale: Weight | StoredTensor) -> Weight:
        return dequantize(numbers(weight), numbers(scale), np.dtype(self.arithmetic))

    def equal(self, first: Weight | StoredTensor, second: Weight | StoredTensor) -> bool:
        if isinstance(first, BlockTensor) and isinstance(second, BlockTensor):
            return first.kind == second.kind and np.array_equal(first.rows, second.rows)
        return np.array_equal(numbers(first), numbers(second))
