"""The config.json that a GGUF file's model would have at Hugging Face, from the file's metadata.

Keys are those of ggml's docs/gguf.md. The architectures are those of the families; files of
Mistral, SmolLM2 and TinyLlama call themselves llama too.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trtla.errors import UsageError
from trtla.formats.arithmetic import GGUF_ARITHMETIC, unknown_arithmetic
from trtla.formats.expert_families import GGUF_SHARED
from trtla.formats.families import BY_ARCHITECTURE, BY_GGUF
from trtla.formats.family import FULL, SLIDING, Family
from trtla.formats.gguf.header import Header
from trtla.formats.gguf.weights import (
    LAYERS,
    LONG_FACTORS,
    MORE_LAYERS,
    PLAIN,
    ROPE_FACTORS,
    SHORT_FACTORS,
    GgufFile,
)
from trtla.formats.rope_scaling import llama3_frequencies
from trtla.formats.shapes import EMBEDDING, LM_HEAD

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""Settings of every Llama 3; the file holds only the factors that follow from them."""
_MOST_LAYERS = 10_001
_TRAINED = "original_max_position_embeddings"
_MAGNITUDE = "rope.scaling.attn_factor"
_YARN = {
    "rope.scaling.original_context_length": _TRAINED,
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
"""Keys of yarn's settings, and Hugging Face's names."""
_LLAMA3_LENGTHS = (8192, *(2**power for power in range(4, 21)))
"""Trained lengths to try, the most likely one first."""
_SHARES = "expert_weights_norm"
_NEEDED = (
    *("expert_count", "expert_used_count", "leading_dense_block_count", "expert_shared_count"),
    _SHARES,
)
"""Keys of a mixture of experts for which a family's usual number would be another model."""


def hf_config(path: Path, header: Header, weights: GgufFile) -> dict[str, Any]:
    """The config.json that the file's model would have at Hugging Face."""
    family = _family(path, header)
    if EMBEDDING not in weights.entries:
        raise UsageError(f"{path} lacks tensor token_embd.weight", "give a file with weights")
    keys = _Keys(path, header.metadata, family)
    _check_arithmetic(keys)
    windows = _windows(keys)
    if windows and family is BY_GGUF["llama"]:  # such a one is called so at Hugging Face
        family = BY_ARCHITECTURE["MistralForCausalLM"]
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        **windows,
        "torch_dtype": _stored_dtype(header),
        "pad_token_id": None,  # transformers' own may be outside the vocabulary
        "vocab_size": weights.entries[EMBEDDING].shape[0],
        **_sizes(keys, header),
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in weights.entries,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in weights.entries,
        "tie_word_embeddings": LM_HEAD not in weights.entries,
        **{
            ours: _own(keys, key)
            for key, ours in family.gguf_keys.items()
            if keys.get(key) or key in _NEEDED
        },
    }
    norms = {"qk_layernorm": "model.layers.0.self_attn.q_norm.weight" in weights.entries}
    known = {**norms, **config}
    own = {theirs: known[ours] for theirs, ours in family.spelled if ours in known}
    for _, ours in family.spelled:
        config.pop(ours, None)
    return {**config, **own, **family.gguf_implied(config)}


def _own(keys: _Keys, key: str) -> float | int:
    """A family's own number: a count or size, or a scale or base; or yes or no."""
    if key == _SHARES:
        return bool(keys.get(key))
    return keys.number(key) if "scale" in key or "freq" in key else keys.size(key)


def llama_layer(path: Path, header: Header, name: str) -> dict[str, Any]:
    """The sizes and RoPE, by Hugging Face's keys, of a file whose layers are Llama's and whose
    architecture has another name."""
    keys = _Keys(path, header.metadata, replace(BY_GGUF["llama"], gguf=name))
    _check_arithmetic(keys)
    return _sizes(keys, header)


def _family(path: Path, header: Header) -> Family:
    name = header.metadata.get("general.architecture")
    family = BY_GGUF.get(name) if isinstance(name, str) else None
    if family is BY_GGUF["llama"] and header.metadata.get("llama.expert_count"):
        family = BY_ARCHITECTURE["MixtralForCausalLM"]
    if family is BY_GGUF["granitemoe"] and header.metadata.get(f"granitemoe.{GGUF_SHARED}"):
        family = BY_ARCHITECTURE["GraniteMoeSharedForCausalLM"]
    if family is None:
        *first, last = BY_GGUF
        raise UsageError(
            f"{path}: architecture {name} is not supported",
            f"trtla reads GGUF files of {', '.join(first)} and {last}",
        )
    return family


def _sizes(keys: _Keys, header: Header) -> dict[str, Any]:
    heads, hidden = keys.size("attention.head_count"), keys.size("embedding_length")
    head = keys.size("attention.key_length", hidden // max(heads, 1))
    scaling = _rope_scaling(keys, header, head)
    trained = {_TRAINED: scaling[_TRAINED]} if scaling and "long_factor" in scaling else {}
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size(LAYERS) - keys.size(MORE_LAYERS, 0),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv", heads),
        "head_dim": head,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.size("context_length"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "rope_scaling": scaling,
        **trained,  # as in a Phi's config.json, whose class has a length of its own otherwise
        **_share(keys, head),
    }


def _share(keys: _Keys, head: int) -> dict[str, float]:
    """The part of a head that is rotated, if it is not all of it."""
    rotated = keys.size("rope.dimension_count", head)
    if rotated == head:
        return {}
    if "partial_rotary_factor" not in keys.family.reads:
        raise UsageError(
            f"{keys.path}: rotary embedding turns {rotated} of the {head} numbers of a head",
            "trtla runs models of this family that rotate whole heads",
        )
    return {"partial_rotary_factor": rotated / max(head, 1)}


def _check_arithmetic(keys: _Keys) -> None:
    """Refuse a key that would change the text and that the family is not known to have."""
    family = keys.family
    named = {key: keys.get(key) for key in GGUF_ARITHMETIC}
    key = unknown_arithmetic(named, GGUF_ARITHMETIC, family.gguf_keys)
    if key is not None:
        raise _changes_the_text(keys, key)


def _changes_the_text(keys: _Keys, key: str) -> UsageError:
    return UsageError(
        f"{keys.path}: {keys.family.gguf}.{key} {keys.get(key)} is not supported",
        "the text would be another one; run the file with llama.cpp",
    )


def _windows(keys: _Keys) -> dict[str, Any]:
    """The attention window and the layers that have it; empty: none has.

    `sliding_window_pattern` is a list, or a number N: every N-th layer has none. Without it all do.
    """
    window = keys.size("attention.sliding_window", 0)
    layers = min(keys.size("block_count"), _MOST_LAYERS)  # of more the config is refused
    pattern = keys.listed("attention.sliding_window_pattern")
    if pattern is None:
        every = keys.size("attention.sliding_window_pattern", 0)
        pattern = [not every or (index + 1) % every > 0 for index in range(layers)]
    family, alike = keys.family, len(pattern) == layers and all(pattern)
    if not window and "attention.sliding_window_pattern" not in family.gguf_absent:
        return {}
    everywhere = family is BY_GGUF["llama"] or "layer_types" in family.fixed
    if not (window and (alike if everywhere else family.has_windows)):
        value = "of these layers" if everywhere else str(window)
        raise UsageError(
            f"{keys.path}: {family.gguf}.attention.sliding_window {value} is not supported",
            f"trtla runs it in {'every layer' if everywhere else 'no layer'} of this architecture",
        )
    kinds = [SLIDING if local else FULL for local in pattern]
    return {"sliding_window": window, "use_sliding_window": True, "layer_types": kinds}


def _stored_dtype(header: Header) -> str:
    """The type of most weights; bfloat16 stands for quantised ones.

    A 4 to 8 bit weight loses far less in bfloat16 than it lost when it was quantised.
    """
    sizes: Counter[str] = Counter()
    for info in header.tensors.values():
        sizes[info.type] += math.prod(info.shape)
    most, _ = sizes.most_common(1)[0]
    return PLAIN[most].name if most in PLAIN else "bfloat16"


class _Keys:
    def __init__(self, path: Path, metadata: dict[str, Any], family: Family) -> None:
        self.path, self._metadata, self.family = path, metadata, family
        self._name = family.gguf

    def get(self, key: str, default: Any = None) -> Any:
        absent = self.family.gguf_absent.get(key, default)
        value = self._metadata.get(f"{self._name}.{key}", absent)
        if isinstance(value, list):
            raise UsageError(
                f"{self.path}: {self._name}.{key} differs from layer to layer",
                "trtla runs models whose layers are alike",
            )
        return value

    def listed(self, key: str) -> list[Any] | None:
        """A list with a value for each layer; None: the key has one number, or is absent."""
        value = self._metadata.get(f"{self._name}.{key}")
        return value if isinstance(value, list) else None

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number; without a default it has to be there."""
        return int(self._there(key, self.get(key, default), int, "a whole number"))

    def number(self, key: str, default: float | None = None) -> float:
        """A number; it is stored in single precision, and was written with fewer digits."""
        value = self._there(key, self.get(key, default), (int, float), "a number")
        return float(f"{value:.7g}")

    def _there(self, key: str, value: Any, kinds: type | tuple[type, ...], description: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise UsageError(
                f"{self.path}: {self._name}.{key} is {value!r}, and must be {description}",
                "convert the model again with a current llama.cpp",
            )
        return value


def _rope_scaling(keys: _Keys, header: Header, head: int) -> dict[str, Any] | None:
    if SHORT_FACTORS in header.tensors:
        return {
            "rope_type": "longrope",
            "short_factor": _factors(keys, header, SHORT_FACTORS).tolist(),
            "long_factor": _factors(keys, header, LONG_FACTORS).tolist(),
            _TRAINED: keys.size("rope.scaling.original_context_length"),
            "attention_factor": keys.number(_MAGNITUDE, 1.0),
        }
    if keys.get(_MAGNITUDE, 1) != 1:
        raise _changes_the_text(keys, _MAGNITUDE)
    if ROPE_FACTORS in header.tensors:
        return _llama3_scaling(keys, header, head)
    kind = keys.get("rope.scaling.type", "linear")  # as in llama.cpp: a factor alone scales
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor in (0, 1)):
        return None
    own = _YARN.items() if kind == "yarn" else ()
    given = {ours: keys.number(key) for key, ours in own if keys.get(key) is not None}
    return {"rope_type": str(kind), "factor": factor, **given}


def _factors(keys: _Keys, header: Header, name: str) -> np.ndarray:
    """The file's factors of the frequencies, float64."""
    if (info := header.tensors.get(name)) is None:
        raise UsageError(f"{keys.path} lacks tensor {name}", "copy the file again")
    stored = GgufFile(keys.path, Header(header.paths, {}, {"rope.factors": info}))
    with closing(stored):
        return stored.read("rope.factors", 0, info.shape[0]).astype(np.float64)


def _llama3_scaling(keys: _Keys, header: Header, head: int) -> dict[str, Any]:
    """The settings whose factors are those of the file."""
    factors = _factors(keys, header, ROPE_FACTORS)
    exponents = np.arange(0, head, 2, dtype=np.float64) / max(head, 1)
    frequencies = keys.number("rope.freq_base", 10000.0) ** -exponents
    for length in _LLAMA3_LENGTHS if factors.size else ():
        largest = float(factors.max())
        scaling = {"factor": largest, **_LLAMA3, _TRAINED: length}
        expected = frequencies / llama3_frequencies(frequencies, scaling, length)
        if expected.shape == factors.shape and np.all(np.abs(expected / factors - 1) < 1e-4):
            return {"rope_type": "llama3", **scaling}
    raise UsageError(
        f"{keys.path}: {ROPE_FACTORS} holds factors that are not those of a Llama 3",
        "trtla runs the rotary scalings default, linear, dynamic and llama3",
    )
