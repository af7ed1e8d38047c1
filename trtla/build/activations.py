"""Calibration: the sizes of activations on some texts.

The unquantised model runs in transformers, a text at a time. FP8 needs the largest absolute values
of its activations, keys and values; int8 and int4 can use the mean squares of its activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy import ndarray
from torch import Tensor

from trtla.build.quantize import Calibration
from trtla.errors import TrtlaError, UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import fp8_groups, kv_scale
from trtla.formats.stored_form import stored_forms
from trtla.formats.torch_tensors import as_array
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
) -> dict[str, ndarray]:
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
    return {name: as_array(sums[of] / tokens) for of in sums for name in groups[of]}


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
