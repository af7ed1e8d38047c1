"""Small random heads, written as the programs that train them write them.

The default sizes fit the shipped tiny model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy import ndarray
from safetensors.torch import save_file

from tests.support.gguf_models import llama3_factors
from tests.support.head_sizes import EagleSizes, MedusaSizes
from trtla.formats.config import CheckpointConfig

Change = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes a head's config.json (of GGUF: its metadata) and its tensors before they are written."""
EAGLE_STYLES = ("specforge", "official", "sharded", "angelslim", "modelopt", "speculators", "gguf")
MEDUSA_STYLES = ("medusa", "medusa-pt", "medusa-vllm", "medusa-model", "medusa-modelopt")
_LAYER = {
    "embedding_norm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "post_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_GGUF = {
    "fc": "fc",
    "input_norm": "enc.output_norm",
    "embedding_norm": "blk.0.attn_norm",
    "hidden_norm": "blk.0.attn_norm_2",
    "q": "blk.0.attn_q",
    "k": "blk.0.attn_k",
    "v": "blk.0.attn_v",
    "o": "blk.0.attn_output",
    "post_norm": "blk.0.ffn_norm",
    "gate": "blk.0.ffn_gate",
    "up": "blk.0.ffn_up",
    "down": "blk.0.ffn_down",
    "norm": "output_norm",
    "lm_head": "output",
    "embedding": "token_embd",
}
_GGUF_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
_MEDUSA = {
    "medusa": ("{k}.{b}.linear", "{k}.{n}"),
    "medusa-pt": ("{k}.{b}.linear", "{k}.{n}"),
    "medusa-vllm": ("blocks.{k}.layers.{b}", "lm_heads.{k}"),
    "medusa-model": ("medusa_head.{k}.{b}.linear", "medusa_head.{k}.{n}"),
    "medusa-modelopt": ("medusa_heads.{k}.medusa_layers.{b}.linear", "medusa_heads.{k}.lm_head"),
}
"""Names of residual blocks and of lm_head; n is the number of blocks."""


def fitting(config: CheckpointConfig) -> dict[str, Any]:
    """The sizes of a head for this model, as arguments of `write_head`."""
    hidden = config.hidden_size
    return {"vocab_size": config.vocab_size, "target_hidden_size": hidden, "hidden_size": hidden}


def write_head(
    path: Path,
    style: str = "specforge",
    *,
    dtype: str = "float32",
    change: Change | None = None,
    **sizes: Any,
) -> Path:
    """Write a head to a folder, in the style gguf to a file; return its path.

    Args:
        dtype: the type of numbers in the files, of matrices alone in GGUF, which has q8_0 too.
        change: changes config.json and tensors, both by the names of the style.
        sizes: fields of `EagleSizes` or `MedusaSizes`.
    """
    if style in MEDUSA_STYLES:
        heads = MedusaSizes(**sizes)
        config, tensors = _medusa_config(heads), _medusa_tensors(heads, style)
    else:
        head = EagleSizes(**sizes)
        if style == "gguf":
            return _write_gguf(head, path, dtype, change)
        config, tensors = _eagle_config(head, style), _eagle_tensors(head, style)
    kind = getattr(torch, dtype)
    stored = {name: _stored(array, kind) for name, array in tensors.items()}
    if change is not None:
        change(config, stored)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    _write_tensors(path, style, stored)
    return path


def head_path(folder: Path, style: str) -> Path:
    """The path of a head in a folder."""
    return folder / ("head.gguf" if style == "gguf" else "head")


def edit(**values: Any) -> Change:
    """Set keys of config.json; None removes one; a dotted name is below another."""

    def change(config: dict[str, Any], _: dict[str, Any]) -> None:
        for key, value in values.items():
            *outer, last = key.split("__")
            place = config
            for name in outer:
                place = place[name]
            place[last] = value
            if value is None:
                del place[last]

    return change


def tensors(**values: Any) -> Change:
    """Set tensors; None removes one, a function changes one."""

    def change(_: dict[str, Any], stored: dict[str, Any]) -> None:
        for key, value in values.items():
            name = key.replace("__", ".")
            if value is None:
                del stored[name]
            else:
                stored[name] = value(stored[name]) if callable(value) else value

    return change


def at(index: int, value: Any) -> Callable[[Any], Any]:
    """A function that sets one number of a tensor."""

    def change(tensor: Any) -> Any:
        tensor = tensor.clone() if isinstance(tensor, torch.Tensor) else tensor.copy()
        tensor.reshape(-1)[index] = value
        return tensor

    return change


def _stored(array: ndarray, kind: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.to(kind) if tensor.is_floating_point() else tensor


def _write_tensors(path: Path, style: str, tensors: dict[str, torch.Tensor]) -> None:
    if style == "official":
        torch.save(tensors, path / "pytorch_model.bin")
    elif style == "medusa-pt":
        torch.save(tensors, path / "medusa_lm_head.pt")
    elif style == "medusa":
        save_file(tensors, path / "medusa_lm_head.safetensors")
    elif style == "sharded":
        names, index = sorted(tensors), {}
        for part, some in enumerate((names[::2], names[1::2]), 1):
            file = f"model-{part:05d}-of-00002.safetensors"
            save_file({name: tensors[name] for name in some}, path / file)
            index |= dict.fromkeys(some, file)
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    else:
        save_file(tensors, path / "model.safetensors")


def _eagle_config(head: EagleSizes, style: str) -> dict[str, Any]:
    layer = {
        "model_type": "llama",
        "hidden_size": head.hidden_size,
        "intermediate_size": head.intermediate_size,
        "num_attention_heads": head.num_attention_heads,
        "num_key_value_heads": head.num_key_value_heads,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": head.rope_theta,
        "rope_scaling": head.rope_scaling,
        "max_position_embeddings": 2048,
        "vocab_size": head.vocab_size,
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    if head.head_dim is not None:
        layer["head_dim"] = head.head_dim
    ids = list(head.boundaries) if head.boundaries is not None else None
    flags = {"norm_before_fc": head.input_norm, "fc_norm": head.fc_norm}
    flags |= {"norm_output": head.norm_output, "norm_before_residual": head.norm_before_residual}
    if style == "speculators":
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.5.0",
            "transformer_layer_config": layer,
            "draft_vocab_size": head.draft_vocab_size,
            "target_hidden_size": _other(head),
            "eagle_aux_hidden_state_layer_ids": ids,
            "embed_requires_grad": False,
            **flags,
        }
    name = "Eagle3LlamaForCausalLM" if style == "angelslim" else "LlamaForCausalLMEagle3"
    places = {key: value for key, value in flags.items() if value}
    inside = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids}
    if style == "modelopt":
        inside |= places
        places = {}
    return {
        "architectures": [name],
        **layer,
        "draft_vocab_size": head.draft_vocab_size,
        **({"eagle_config": inside} if ids or style == "modelopt" else {}),
        **({"target_hidden_size": other} if (other := _other(head)) else {}),
        **places,
    }


def _other(head: EagleSizes) -> int | None:
    return head.target_hidden_size if head.target_hidden_size != head.hidden_size else None


def _eagle_tensors(head: EagleSizes, style: str) -> dict[str, ndarray]:
    layer = "layers.0" if style == "speculators" else "midlayer"
    prefix = "model." if style == "modelopt" else ""
    found = {}
    for name, array in head.tensors.items():
        own = {"embedding": "embed_tokens"}.get(name, name)
        own = f"{layer}.{_LAYER[name]}" if name in _LAYER else own
        found[f"{prefix if name != 'lm_head' else ''}{own}.weight"] = array
    ids = head.target_ids
    ids = np.arange(head.vocab_size) if ids is None else ids
    member = np.zeros(head.vocab_size, np.bool_)
    member[ids] = True
    return {**found, "d2t": ids - np.arange(len(ids)), "t2d": member}


def _medusa_config(heads: MedusaSizes) -> dict[str, Any]:
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "medusa_num_heads": 2,  # as in public ones, whatever they have
        "medusa_num_layers": heads.num_layers,
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        "hidden_size": heads.hidden_size,
        "vocab_size": heads.vocab_size,
    }


def _medusa_tensors(heads: MedusaSizes, style: str) -> dict[str, ndarray]:
    found = {}
    for name, array in heads.tensors.items():
        k, part, *last = name.split(".")
        pattern = _MEDUSA[style][part == "lm_head"]
        own = pattern.format(k=k, b=part, n=heads.num_layers)
        found[f"{own}.{last[0] if last else 'weight'}"] = array
    return found


def _write_gguf(head: EagleSizes, path: Path, dtype: str, change: Change | None) -> Path:
    """Write a file as llama.cpp's converter does."""
    metadata = {
        "block_count": 1,
        "context_length": 2048,
        "vocab_size": head.vocab_size,
        "embedding_length": head.hidden_size,
        "feed_forward_length": head.intermediate_size,
        "attention.head_count": head.num_attention_heads,
        "attention.head_count_kv": head.num_key_value_heads,
        "attention.key_length": head.head_size,
        "attention.value_length": head.head_size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": head.rope_theta,
        "rope.dimension_count": head.head_size,
        "extract_layers": list(head.boundaries or ()),
        "target_hidden_size": head.target_hidden_size,
        "norm_before_residual": head.norm_before_residual,
        **({"norm_before_fc": True} if head.input_norm else {}),
    }
    tensors: dict[str, Any] = {f"{_GGUF[n]}.weight": array for n, array in head.tensors.items()}
    heads = {"q": head.num_attention_heads, "k": head.num_key_value_heads}
    for letter, count in heads.items():
        name = f"blk.0.attn_{letter}.weight"
        pairs = tensors[name].reshape(count, 2, -1, tensors[name].shape[1]).swapaxes(1, 2)
        tensors[name] = np.ascontiguousarray(pairs.reshape(tensors[name].shape))
    if head.rope_scaling is not None:
        rope = {**head.rope_scaling, "rope_theta": head.rope_theta}
        tensors["rope_freqs.weight"] = llama3_factors(rope, head.head_size)
    if head.target_ids is not None:
        tensors["d2t"] = head.target_ids
    if change is not None:
        change(metadata, tensors)
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture", "eagle3"))
    add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool}
    for key, value in metadata.items():
        add.get(type(value), writer.add_array)(f"eagle3.{key}", value)
    kind = gguf.GGMLQuantizationType[_GGUF_TYPES[dtype]]
    for name, array in tensors.items():
        plain = array.ndim < 2 or array.dtype != np.float32
        if plain or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
