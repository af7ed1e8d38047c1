"""The config.json of an EAGLE-3 head, in SpecForge's and in speculators' form.

SpecForge and the official heads have one flat object, some of whose keys may be in `eagle_config`;
speculators nests the layer's. Flags that change the arithmetic and are not known are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trtla.errors import UsageError, named
from trtla.formats.config import CheckpointConfig
from trtla.formats.heads.head import EagleConfig
from trtla.formats.heads.kinds import DRAFT_VOCABULARY
from trtla.formats.heads.stored import AGAIN
from trtla.formats.hf_config import parse_hf_config

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_LAYER = "transformer_layer_config"
_INSIDE = "eagle_config"
_TARGET_SIZE = "target_hidden_size"
FLAGS = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
"""Keys of the norms that a head may have or not."""
_FIXED = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "attention_bias": False,
    "mlp_bias": False,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
}
"""Keys that a head may have with one value alone."""
_WINDOW = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
_NOT_LLAMAS = (*_WINDOW, DRAFT_VOCABULARY)
"""Keys of a head that the config.json of a Llama does not have."""
_TYPES = (None, "llama", "mistral", "qwen2", "qwen3", "eagle", "eagle3")
"""Values of `model_type` whose layers differ from Llama's in tensors alone, if at all."""
_OWN_FEEDBACK = ("LlamaForCausalLM", "LlamaForCausalLMEagle3")
"""Classes whose trainer feeds back states before the norm, whatever `norm_output` says."""
_DEFAULT_LAYERS = 7
"""The fewest layers of a target whose layers 2, L/2 and L-3 follow each other."""


@dataclass(frozen=True, slots=True)
class _Keys:
    where: Path
    """The file, for messages."""
    top: dict[str, Any]
    inside: dict[str, Any]
    """Its `eagle_config`."""
    layer: dict[str, Any]
    """The keys of the layer; of SpecForge's all."""

    @property
    def speculators(self) -> bool:
        return self.layer is not self.top

    @property
    def items(self) -> Iterator[tuple[str, Any]]:
        for place in (self.top, self.inside, self.layer):
            yield from place.items()

    def flag(self, key: str, absent: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return absent
        if not isinstance(value, bool):
            raise self.wrong(key, value, "must be true or false")
        return value

    def size(self, key: str, place: dict[str, Any], absent: int | None = None) -> int:
        value = place.get(key)
        value = absent if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, value, "must be a whole number above 0")
        return value

    def get(self, key: str) -> Any:
        value = self.top.get(key)
        return self.inside.get(key) if value is None else value

    def wrong(self, key: str, value: object, rule: str) -> UsageError:
        return UsageError(f'{self.where}: "{key}" is {json.dumps(value)[:60]}, and {rule}', AGAIN)


def parse_eagle(
    data: dict[str, Any],
    where: Path,
    layers: tuple[int, ...] | None = None,
    target: CheckpointConfig | None = None,
) -> EagleConfig:
    """The shape that a config.json describes.

    Args:
        where: the file, for messages.
        layers: boundaries in place of those of the file.
        target: the model that it drafts for, whose number of layers the default boundaries need.
    """
    keys = _Keys(where, data, _object(data, _INSIDE, where), _object(data, _LAYER, where) or data)
    _check_fixed(keys)
    vocab = keys.size("vocab_size", keys.layer)
    draft = keys.size(DRAFT_VOCABULARY, keys.top, vocab)
    if draft > vocab:
        raise keys.wrong(DRAFT_VOCABULARY, draft, f'"vocab_size" is {vocab}')
    layer = _layer(keys, draft)
    fc_norm, input_norm = keys.flag("fc_norm"), keys.flag("norm_before_fc")
    if fc_norm and input_norm:
        raise keys.wrong("fc_norm", True, 'so is "norm_before_fc"; a head has one of both')
    own_feedback = _class(data) in _OWN_FEEDBACK and not keys.speculators
    return EagleConfig(
        layer=layer,
        vocab_size=vocab,
        target_hidden_size=keys.size(_TARGET_SIZE, keys.top, layer.hidden_size),
        boundaries=boundaries(_read_layers(keys), layers, target, where),
        fc_norm=fc_norm,
        input_norm=input_norm,
        norm_before_residual=keys.flag("norm_before_residual", absent=keys.speculators),
        norm_output=keys.flag("norm_output") and not own_feedback,
    )


def boundaries(
    read: tuple[int, ...] | None,
    layers: tuple[int, ...] | None,
    target: CheckpointConfig | None,
    where: Path,
) -> tuple[int, ...]:
    """The boundaries of a head: those of the option, of its file, or the target's default; empty
    without all of them."""
    found = layers or read
    if found is None:
        return default_boundaries(target, where) if target is not None else ()
    if found[0] < 1 or any(a >= b for a, b in pairwise(found)):
        source = named("head_layers") if layers else f'{where}: "{LAYER_IDS}"'
        raise UsageError(
            f"{source} has layers {_listed(found)}, which do not rise from 1 on",
            f"give those that the head was trained on, as {named('head_layers')} 2,16,29",
        )
    return found


def default_boundaries(target: CheckpointConfig, where: Path) -> tuple[int, ...]:
    """Layers 2, L/2 and L-3, which trainers take by themselves."""
    count = target.num_hidden_layers
    if count < _DEFAULT_LAYERS:
        raise UsageError(
            f"{where} names no layers, and 2, L/2 and L-3 do not rise in a model of {count} layers",
            f'name those that the head was trained on there, as "{LAYER_IDS}", or with '
            f"{named('head_layers')}",
        )
    return 2, count // 2, count - 3


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))


def _read_layers(keys: _Keys) -> tuple[int, ...] | None:
    """The boundaries of config.json; speculators has them, all others outputs where 1 is first."""
    ids = keys.get(LAYER_IDS)
    if ids in (None, []):
        return None
    whole = isinstance(ids, list) and all(type(value) is int for value in ids)
    if not whole:
        raise keys.wrong(LAYER_IDS, ids, "must be a list of whole numbers")
    outputs = not keys.speculators and ids[0] == 1
    return tuple(layer + outputs for layer in ids)


def _check_fixed(keys: _Keys) -> None:
    """Refuse keys that ask for other arithmetic."""
    for key, value in keys.items:
        if key in _FIXED and value not in (None, _FIXED[key]):
            raise keys.wrong(key, value, f"trtla reads heads with {json.dumps(_FIXED[key])} alone")
        if value is True and "norm" in key and key not in (*FLAGS, *_FIXED):
            raise keys.wrong(key, value, "trtla does not support this norm")
    if (kind := keys.layer.get("model_type")) not in _TYPES:
        raise keys.wrong("model_type", kind, "trtla reads heads with a layer of Llama")


def _layer(keys: _Keys, draft: int) -> CheckpointConfig:
    """The head's layer as a Llama of its draft vocabulary."""
    window = _window(keys)
    data = {
        key: value for key, value in keys.layer.items() if key not in (*_WINDOW, DRAFT_VOCABULARY)
    }
    data |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": draft}
    data |= {"num_hidden_layers": 1}
    layer, _ = parse_hf_config(data, keys.where)
    return layer.model_copy(update={"layer_windows": (window,)}) if window else layer


def _window(keys: _Keys) -> int | None:
    """The head's own window, which `layer_types` switches on."""
    kinds = keys.layer.get("layer_types")
    if kinds in (None, ["full_attention"]):
        return None
    if kinds != ["sliding_attention"]:
        raise keys.wrong("layer_types", kinds, "a head has one layer")
    return keys.size("sliding_window", keys.layer)


def _object(data: dict[str, Any], key: str, where: Path) -> dict[str, Any]:
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise UsageError(
            f'{where}: "{key}" is {json.dumps(value)[:60]}, and must be an object', AGAIN
        )
    return value or {}


def _class(data: dict[str, Any]) -> object:
    listed = data.get("architectures")
    return listed[0] if isinstance(listed, list) and listed else None
