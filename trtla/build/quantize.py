"""Calibration: the sizes of activations on some texts, and FP8 weights with scales from them.

The unquantised model runs in transformers, a text at a time. FP8 needs the largest absolute values
of its activations, keys and values; int8 and int4 can use the mean squares of its activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from trtla.errors import TrtlaError, UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import fp8_groups, hf_shapes, kv_scale
from trtla.formats.stored_form import stored_forms
from trtla.formats.tensors import TensorSource, quantize, row_spans, scale_of
from trtla.formats.tensors import largest as largest_of
from trtla.formats.transformers_load import load_model

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel


MAX_TEXT_TOKENS = 512
"""Longer texts are cut; calib_max_seq_length of TensorRT-LLM's quantize.py."""

_READERS = {
    "self_attn.q_proj": ("self_attn.qkv_proj",),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
"""By the module whose input is watched: the linears that read the same input."""
_See = Callable[[str, Tensor], None]
"""Gets the name of a linear, as in `fp8_groups`, or of a scale, and numbers [..., inputs]."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The data and device of a conversion's calibration.

    `prompts` are read once, after the model's own files have been checked. `progress` is called
    with (texts done, texts in all). `device` is cpu or an available CUDA device.
    """

    prompts: Iterable[Sequence[int]]
    device: str = "cpu"
    progress: Callable[[int, int], None] | None = None


def calibrate(folder: Path, config: CheckpointConfig, calibration: Calibration) -> dict[str, float]:
    """Return the largest absolute value by the name of its scale.

    The values are the inputs of every quantised linear (`NAME.input_scale`), and of every layer the
    keys, after their rotation, and values together (`plan.kv_scale`). `folder` is Hugging Face's;
    prompts are cut to the positions of its `config` too.
    """
    largest: dict[str, Tensor] = {}

    def keep(name: str, values: Tensor) -> None:
        value = values.abs().amax().float()
        largest[name] = torch.maximum(largest.get(name, value), value)  # which keeps a NaN

    def see(linear: str, values: Tensor) -> None:
        keep(f"{linear}.input_scale", values)

    _read_texts(folder, config, calibration, see, _seen_cache(keep))
    ranges = {name: value.item() for name, value in largest.items()}
    for name, value in ranges.items():
        if not 0.0 < value < math.inf:
            where, _, kind = name.rpartition(".")
            source = "keys and values" if kind == "kv_scale" else "input"
            raise _unusable(f"{source} of {where}", value, "gives no FP8 scale")
    return ranges


def mean_squares(
    folder: Path, config: CheckpointConfig, calibration: Calibration
) -> dict[str, Tensor]:
    """Return the mean square of every input of a layer's linear, float32 [inputs], by weight."""
    sums: dict[str, Tensor] = {}

    def see(linear: str, values: Tensor) -> None:
        squares = values.float().square().flatten(0, -2).sum(0)
        sums[linear] = sums[linear] + squares if linear in sums else squares

    tokens = _read_texts(folder, config, calibration, see, None)
    for linear, squares in sums.items():
        if not math.isfinite(largest := squares.amax().item()):
            raise _unusable(f"input of {linear}", largest, "weighs no errors")
    groups = fp8_groups(config)
    return {name: (sums[of] / tokens).cpu() for of in sums for name in groups[of]}


def _read_texts(
    folder: Path,
    config: CheckpointConfig,
    calibration: Calibration,
    see: _See,
    cache: DynamicCache | None,
) -> int:
    """Run the model over all texts; return the number of their tokens."""
    longest = min(MAX_TEXT_TOKENS, config.max_positions)
    prompts = [list(prompt)[:longest] for prompt in calibration.prompts if prompt]
    if not prompts:
        raise UsageError("the calibration data holds no text", "give --calib-data with some text")
    model = _load(folder, config, calibration.device)
    _watch(model, config, see)
    for done, prompt in enumerate(prompts, 1):
        _read(model, prompt, cache)
        if calibration.progress is not None:
            calibration.progress(done, len(prompts))
    return sum(map(len, prompts))


def _unusable(name: str, value: float, why: str) -> TrtlaError:
    return TrtlaError(
        f"the {name} reached {value:g} in calibration, which {why}",
        "calibrate with other texts (--calib-data); if it stays, the model is broken",
    )


def _load(folder: Path, config: CheckpointConfig, device: str) -> PreTrainedModel:
    """Load the model in its own dtype; on a CPU in float32 if that is float16."""
    dtype = "float32" if device == "cpu" and config.dtype == "float16" else config.dtype
    kind, hint = "AutoModelForCausalLM", "check the folder with transformers"
    loaded: PreTrainedModel = load_model(kind, folder, getattr(torch, dtype), hint).to(device)
    return loaded


def _watch(model: PreTrainedModel, config: CheckpointConfig, see: _See) -> None:
    forms = stored_forms(config, gguf=False)
    for layer in range(config.num_hidden_layers):
        for module, linears in _READERS.items():
            prefix = f"model.layers.{layer}"
            names = [f"{prefix}.{linear}" for linear in linears]

            def show(_: object, inputs: tuple[Tensor, ...], names: list[str] = names) -> None:
                for name in names:
                    see(name, inputs[0])

            stored = forms[f"{prefix}.{module}.weight"].name.removesuffix(".weight")
            watched = model.get_submodule(stored)
            watched.register_forward_pre_hook(show)


def _seen_cache(keep: _See) -> DynamicCache:
    """Return a cache that stays empty: attention stores keys and values, and gets them back."""
    from transformers import DynamicCache

    class SeenCache(DynamicCache):
        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            keep(kv_scale(layer_idx), key_states)
            keep(kv_scale(layer_idx), value_states)
            return key_states, value_states

    return SeenCache()


@torch.inference_mode()
def _read(model: PreTrainedModel, prompt: Sequence[int], cache: DynamicCache | None) -> None:
    ids = torch.tensor([list(prompt)], device=model.device)
    model.base_model(input_ids=ids, past_key_values=cache, use_cache=cache is not None)


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
        self._scales = {name: scale_of(largest) for name, largest in ranges.items()}

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
        pieces = [largest_of(self._model.read(weight, *span)) for span in spans]
        largest = float(np.max(pieces))  # which keeps a NaN
        if not math.isfinite(largest):
            raise UsageError(
                f"tensor {weight} holds {largest}, which FP8 has no scale for",
                "copy the weights again: the model itself cannot compute with them",
            )
        return largest
