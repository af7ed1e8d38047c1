"""FP8 weights and scales of a Hugging Face folder, in the form of TensorRT-LLM's checkpoint.

A folder has a weight scale and an input scale for each linear, the checkpoint one for q, k and v
together: the largest. Weights whose own scale is smaller are requantised with it. Files that fuse
q, k and v have one scale already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.config import FP8, CheckpointConfig
from trtla.formats.plan import fp8_groups, kv_scale
from trtla.formats.stored_form import StoredForm
from trtla.formats.tensors import E4M3, FLOAT32, cast, quantize
from trtla.formats.tensors import dequantize as numbers_of

_KEYS = ("k_proj.k_scale", "k_scale", "k_proj.output_scale", "kv_scale")
_VALUES = ("v_proj.v_scale", "v_scale", "v_proj.output_scale", "kv_scale")
"""Names of the scales of cached keys and values, below `self_attn`."""
_OTHERS = ("q_scale", "prob_scale", "q_proj.output_scale")
"""Scales of FP8 attention, which is not done."""
ReadScale = Callable[[str], float]
"""Gives the number in a scale's tensor."""
_Found = TypeVar("_Found")


def quantised_weights(config: CheckpointConfig, forms: Mapping[str, StoredForm]) -> dict[str, str]:
    """The type of each stored FP8 weight."""
    weights = (weight for group in fp8_groups(config).values() for weight in group)
    return {forms[weight].name: FP8 for weight in weights}


def linear_scales(weights: Collection[str]) -> Iterator[str]:
    """The names of the scales that stored weights must have beside them."""
    for weight in weights:
        yield from (_beside(weight, kind) for kind in ("weight_scale", "input_scale"))


def cache_scales(config: CheckpointConfig) -> Iterator[str]:
    """The names of scales that files may have for keys and values, or for FP8 attention."""
    for layer in range(config.num_hidden_layers):
        yield from _in_layer(layer, (*_KEYS, *_VALUES, *_OTHERS))


def is_cache_scale(name: str) -> bool:
    """Return True for a scale of cached keys and values, or of FP8 attention."""
    return name.partition(".self_attn.")[2] in (*_KEYS, *_VALUES, *_OTHERS)


class StoredFp8:
    """The scales of an FP8 folder, and its weights with those of the checkpoint.

    Args:
        forms: where weights of the plan are stored.
        stored: the names of all tensors in the files.
        read_scale: reads one.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        forms: Mapping[str, StoredForm],
        stored: Collection[str],
        read_scale: ReadScale,
    ) -> None:
        self._forms, self._stored, self._read_scale = forms, stored, read_scale
        groups = fp8_groups(config)
        self._group_of = {weight: name for name, group in groups.items() for weight in group}
        self._groups, self._known = groups, dict[str, float]()
        self._layer_of = {kv_scale(layer): layer for layer in range(config.num_hidden_layers)}

    def weight(self, name: str, rows: ndarray) -> ndarray:
        """Rows of a stored weight with the scale of the checkpoint; others as they are."""
        if name not in self._group_of:
            return rows
        own = self._scale(_beside(self._forms[name].name, "weight_scale"))
        shared = self._largest(self._group_of[name], "weight_scale")
        if own == shared:
            return rows
        return quantize(numbers_of(rows, np.float32(own), FLOAT32), shared)

    def numbers(self, stored: str, rows: ndarray) -> ndarray:
        """Rows of a stored tensor in numbers: FP8 ones times their own scale."""
        if rows.dtype != E4M3:
            return rows
        return numbers_of(rows, np.float32(self._scale(_beside(stored, "weight_scale"))), FLOAT32)

    def scale(self, name: str) -> ndarray | None:
        """A scale of the checkpoint, float32 [1], by its name in a source; None: it is none."""
        linear, _, kind = name.rpartition(".")
        if name in self._layer_of:
            value = self._cache_scale(self._layer_of[name])
        elif linear in self._groups and kind in ("weight_scale", "input_scale"):
            value = self._largest(linear, kind)
        else:
            return None
        return np.array([value], np.float32)

    def _largest(self, linear: str, kind: str) -> float:
        weights = self._groups[linear]
        return max(self._scale(_beside(self._forms[weight].name, kind)) for weight in weights)

    def _cache_scale(self, layer: int) -> float:
        """The larger one of keys and values; 1, as TensorRT-LLM has it, where files have none."""
        first = (
            next((n for n in _in_layer(layer, names) if n in self._stored), None)
            for names in (_KEYS, _VALUES)
        )
        return max((self._scale(name) for name in first if name is not None), default=1.0)

    def _scale(self, name: str) -> float:
        if name not in self._known:
            value = self._read_scale(name)
            if not 0.0 < value < math.inf:
                raise UsageError(
                    f"tensor {name} is {value:g}, and a scale is above 0", "copy the weights again"
                )
            self._known[name] = value
        return self._known[name]


def scale_number(array: ndarray) -> float:
    """The number of a scale's tensor."""
    return float(cast(array, FLOAT32).reshape(-1)[0])


def _beside(weight: str, kind: str) -> str:
    return f"{weight.removesuffix('.weight')}.{kind}"


def _in_layer(layer: int, names: tuple[str, ...]) -> Iterator[str]:
    return (f"model.layers.{layer}.self_attn.{name}" for name in names)
