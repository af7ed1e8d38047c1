"""A GGUF file's metadata as a Hugging Face config.json.

Keys are those of ggml's docs/gguf.md. The types of the model are llama (which files of Mistral,
SmolLM2 and TinyLlama call themselves too) and qwen2.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from trtla.errors import UsageError
from trtla.formats.gguf.header import Header
from trtla.formats.gguf.weights import PLAIN, ROPE_FACTORS, GgufFile
from trtla.formats.plan import EMBEDDING, LM_HEAD
from trtla.formats.tensors import llama3_frequencies

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""What every Llama 3 has; the file holds only what follows from it."""
_LLAMA3_LENGTHS = (8192, *(2**power for power in range(4, 21)))
"""Trained lengths that are tried, the most likely one first."""
_CLOSE = 1e-4


def hf_config(path: Path, header: Header, weights: GgufFile) -> dict[str, Any]:
    """The config.json that the file's model would have at Hugging Face."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UsageError(
            f"{path}: architecture {name} is not supported",
            f"trtla reads GGUF files of {' and '.join(ARCHITECTURES)}",
        )
    if EMBEDDING not in weights.entries:
        raise UsageError(f"{path} lacks tensor token_embd.weight", "give a file with weights")
    keys = _Keys(path, header.metadata, name)
    if keys.get("expert_count", 0):
        raise UsageError(
            f"{path}: a mixture of {keys.get('expert_count')} experts is not supported",
            "trtla runs dense models",
        )
    heads, hidden = keys.size("attention.head_count"), keys.size("embedding_length")
    head = keys.size("attention.key_length", hidden // max(heads, 1))
    return {
        "architectures": [ARCHITECTURES[name]],
        "model_type": name,
        "torch_dtype": stored_dtype(header),
        "vocab_size": weights.entries[EMBEDDING].shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv", heads),
        "head_dim": head,
        "hidden_act": "silu",
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.size("context_length"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(path, keys, header, head),
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in weights.entries,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in weights.entries,
        "tie_word_embeddings": LM_HEAD not in weights.entries,
    }


def stored_dtype(header: Header) -> str:
    """The type of most weights; bfloat16 stands for quantised ones.

    What a 4 to 8 bit weight loses in bfloat16 is far below what it lost when it was quantised.
    """
    sizes: dict[str, int] = {}
    for info in header.tensors.values():
        sizes[info.type] = sizes.get(info.type, 0) + math.prod(info.shape)
    most = max(sizes, key=lambda kind: sizes[kind])
    return str(PLAIN.get(most, torch.bfloat16)).removeprefix("torch.")


class _Keys:
    def __init__(self, path: Path, metadata: dict[str, Any], name: str) -> None:
        self._path, self._metadata, self._name = path, metadata, name

    def get(self, key: str, default: Any = None) -> Any:
        value = self._metadata.get(f"{self._name}.{key}", default)
        if isinstance(value, list):
            raise UsageError(
                f"{self._path}: {self._name}.{key} differs from layer to layer",
                "trtla runs models whose layers are alike",
            )
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number; without a default it has to be there."""
        return int(self._there(key, self.get(key, default), int, "a whole number"))

    def number(self, key: str, default: float | None = None) -> float:
        """A number; it is stored in single precision, and was written with fewer digits."""
        value = self._there(key, self.get(key, default), (int, float), "a number")
        return float(f"{value:.7g}")

    def _there(self, key: str, value: Any, kinds: type | tuple[type, ...], what: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise UsageError(
                f"{self._path}: {self._name}.{key} is {value!r}, and must be {what}",
                "convert the model again with a current llama.cpp",
            )
        return value


def _rope_scaling(path: Path, keys: _Keys, header: Header, head: int) -> dict[str, Any] | None:
    turned = keys.size("rope.dimension_count", head)
    if turned != head:
        raise UsageError(
            f"{path}: rotary embedding turns {turned} of the {head} numbers of a head",
            "trtla runs models that rotate whole heads",
        )
    if ROPE_FACTORS in header.tensors:
        return _llama3_scaling(path, keys, header, head)
    kind = keys.get("rope.scaling.type", "linear")  # as in llama.cpp: a factor alone scales
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind == "yarn":
        raise UsageError(
            f"{path}: rope scaling yarn is not supported in GGUF files",
            "use the model's Hugging Face folder",
        )
    if kind == "none" or (kind == "linear" and factor in (0, 1)):
        return None
    return {"rope_type": kind, "factor": factor}


def _llama3_scaling(path: Path, keys: _Keys, header: Header, head: int) -> dict[str, Any]:
    """The settings whose factors are those of the file."""
    info = header.tensors[ROPE_FACTORS]
    stored = GgufFile(path, Header(header.paths, {}, {"rope.factors": info}))
    factors = stored.read("rope.factors", 0, info.shape[0]).double()
    frequencies = keys.number("rope.freq_base", 10000.0) ** -(
        torch.arange(0, head, 2).double() / max(head, 1)
    )
    for length in _LLAMA3_LENGTHS if factors.numel() else ():
        largest = float(factors.max())
        scaling = {"factor": largest, **_LLAMA3, "original_max_position_embeddings": length}
        wanted = frequencies / llama3_frequencies(frequencies, scaling, length)
        if wanted.shape == factors.shape and bool(((wanted / factors - 1).abs() < _CLOSE).all()):
            return {"rope_type": "llama3", **scaling}
    raise UsageError(
        f"{path}: {ROPE_FACTORS} holds factors that are not those of a Llama 3",
        "trtla runs the rotary scalings default, linear, dynamic and llama3",
    )
