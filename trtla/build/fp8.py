"""FP8 quantisation of a Hugging Face model while it is read: weights in FP8, scales as tensors.

The weights' scales come from the weights, those of activations, keys and values from calibration
(trtla.build.calibration). Memory holds pieces of a tensor only: the largest value of each weight is
found by one more pass over the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from trtla.build.plan import fp8_groups, hf_shapes
from trtla.build.source import TensorSource, row_spans
from trtla.config import CheckpointConfig
from trtla.e4m3 import quantize, scale_of
from trtla.errors import UsageError


class Fp8Source:
    """A model as a source of FP8 weights and of their scales.

    q, k and v are rounded once, with the largest of their three scales: requantising them, as
    TensorRT-LLM's converters do, would round twice and give the same scale.

    Args:
        model: reads the unquantised weights.
        config: the model's sizes.
        ranges: the largest absolute value by name of the scale that follows from it: inputs of
            linears, and keys and values.
    """

    def __init__(
        self, model: TensorSource, config: CheckpointConfig, ranges: Mapping[str, float]
    ) -> None:
        self._model, self._shapes = model, hf_shapes(config)
        self._groups = fp8_groups(config)
        self._group_of = {weight: name for name, group in self._groups.items() for weight in group}
        self._scales = {name: scale_of(largest) for name, largest in ranges.items()}

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop): FP8 of a linear's weight, float32 of a scale, else as stored.

        Raises:
            UsageError: a weight is infinite or not a number.
        """
        if name in self._group_of:
            scale = torch.tensor(self._weight_scale(self._group_of[name]))
            return quantize(self._model.read(name, start, stop), scale)
        if name in self._shapes:
            return self._model.read(name, start, stop)
        linear = name.removesuffix(".weight_scale")
        scale_value = self._scales[name] if linear == name else self._weight_scale(linear)
        return torch.tensor([scale_value])[start:stop]

    def _weight_scale(self, linear: str) -> float:
        name = f"{linear}.weight_scale"
        if name not in self._scales:
            self._scales[name] = scale_of(max(map(self._largest, self._groups[linear])))
        return self._scales[name]

    def _largest(self, weight: str) -> float:
        """The largest absolute value of a weight, piece by piece."""
        rows, width = self._shapes[weight]
        largest = torch.zeros(())
        for start, stop in row_spans((0, rows), width):
            piece = self._model.read(weight, start, stop)
            largest = torch.maximum(largest, piece.abs().amax().float())  # which keeps a NaN
        if not math.isfinite(largest.item()):
            raise UsageError(
                f"tensor {weight} holds {largest.item()}, which FP8 has no scale for",
                "copy the weights again: the model itself cannot compute with them",
            )
        return largest.item()
