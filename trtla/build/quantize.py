"""FP8 weights with their scales, and what a calibration runs on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import fp8_groups
from trtla.formats.shapes import hf_shapes
from trtla.formats.tensors import TensorSource, largest, quantize, row_spans, scale_of


@dataclass(frozen=True, slots=True)
class Calibration:
    """The data and device of a conversion's calibration.

    `prompts` are read once, after the model's own files have been checked. `progress` is called
    with (texts done, texts in all). `device` is cpu or an available CUDA device.
    """

    prompts: Iterable[Sequence[int]]
    device: str = "cpu"
    progress: Callable[[int, int], None] | None = None


class Fp8Source:
    """A model as a source of FP8 weights and their scales.

    q, k and v are rounded once, with the largest of their three scales, and so are gate and up:
    requantising them, as TensorRT-LLM does when it fuses them, would round twice and give the same
    scale.

    `ranges` are those of `calibrate`.
    """

    def __init__(
        self, model: TensorSource, config: CheckpointConfig, ranges: Mapping[str, float]
    ) -> None:
        self._model, self._shapes = model, hf_shapes(config)
        groups = fp8_groups(config)
        self._group_of = {weight: name for name, group in groups.items() for weight in group}
        self._alike = dict(groups)
        for layer in range(config.num_hidden_layers):
            pair = [f"model.layers.{layer}.mlp.{name}" for name in ("gate_proj", "up_proj")]
            self._alike |= dict.fromkeys(pair, groups[pair[0]] + groups[pair[1]])
        self._scales = {name: scale_of(value) for name, value in ranges.items()}

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Return rows [start, stop): FP8 of a linear's weight, float32 of a scale, else as
        stored."""
        if name in self._group_of:
            scale = self._weight_scale(self._group_of[name])
            return quantize(self._model.read(name, start, stop), scale)
        if name in self._shapes:
            return self._model.read(name, start, stop)
        linear = name.removesuffix(".weight_scale")
        scale = self._scales[name] if linear == name else self._weight_scale(linear)
        return np.array([scale], np.float32)[start:stop]

    def _weight_scale(self, linear: str) -> float:
        name = f"{linear}.weight_scale"
        if name not in self._scales:
            self._scales[name] = scale_of(max(map(self._largest, self._alike[linear])))
        return self._scales[name]

    def _largest(self, weight: str) -> float:
        rows, width = self._shapes[weight]
        spans = row_spans((0, rows), width)
        pieces = [largest(self._model.read(weight, *span)) for span in spans]
        most = float(np.max(pieces))  # which keeps a NaN
        if not math.isfinite(most):
            raise UsageError(
                f"tensor {weight} holds {most}, which FP8 has no scale for",
                "copy the weights again: the model itself cannot compute with them",
            )
        return most
