"""The tensors of a GGUF file by their Hugging Face names, as blocks or as numbers.

In some architectures the rows of q and k are ordered so that two numbers that rotary embedding
rotates together lie side by side; Hugging Face has them half a head apart. Whole rows are moved, so
quantised blocks stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.files import read_json
from trtla.formats.blocks import BLOCK_TYPES, dequantize_blocks
from trtla.formats.families import BY_GGUF
from trtla.formats.family import Family
from trtla.formats.gguf.header import (
    MADE_OF,
    Header,
    TensorInfo,
    check_names,
    quick_header,
    shards,
    stamps,
)
from trtla.formats.weight_files import Entry, FileBytes, array_bytes, changed, flat_shape

_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "exp_probs_b": "mlp.gate.e_score_correction",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
"""The divisor of each rotary frequency in llama3's scaling. No weight."""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""The same of longrope's two ranges of lengths."""
LAYERS, MORE_LAYERS = "block_count", "nextn_predict_layers"
"""The keys of the count of layers, and of those among them that predict further tokens."""
NO_WEIGHTS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
PLAIN = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""ggml's types that are not quantised."""


class GgufFile:
    """An open model; `entries` have Hugging Face's names, quantised ones read as float32.

    `path` is the first of its files, or the `gguf.json` of a model folder.
    """

    def __init__(self, path: Path, header: Header | None = None) -> None:
        origin = read_json(path) if path.name == MADE_OF else None
        self.path = Path(origin["path"]) if origin else path
        # Before the header: the files may be replaced after it is read.
        file_stamps = stamps(shards(self.path))
        if origin and file_stamps != origin["stamps"]:
            raise changed(self.path)
        header = header or quick_header(self.path)
        self._files = {
            path: FileBytes(path, (int(size), int(time)))
            for path, (_, size, time) in zip(header.paths, file_stamps, strict=True)
        }
        family = BY_GGUF.get(str(header.metadata.get("general.architecture")))
        left_out = _predicting(header.metadata, family)
        names = {n: hf_name(n, family) for n in header.tensors if _layer(n) not in left_out}
        check_names(self.path, names.values())
        self._infos = {
            names[name]: _flat(name, info)
            for name, info in header.tensors.items()
            if name in names and name not in NO_WEIGHTS
        }
        self._heads = _turned_heads(header.metadata, family)
        self.entries = {name: _entry(name, info) for name, info in self._infos.items()}

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop) of a tensor: as stored, or dequantised to float32."""
        rows, kind = self.blocks(name, start, stop), self.type_of(name)
        values = rows.view(PLAIN[kind]) if kind in PLAIN else _dequantized(kind, rows)
        return values.reshape(stop - start, *self.entries[name].shape[1:])

    def type_of(self, name: str) -> str:
        """ggml's name of a tensor's type, such as Q4_1."""
        return self._infos[name].type

    def blocks(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop) as bytes, uint8 [rows, bytes of a row], in Hugging Face's order."""
        info, heads = self._infos[name], self._heads.get(name.split(".")[-2], 0)
        if not heads:
            return self._rows(info, name, start, stop)
        size = info.shape[0] // heads
        first, last = start // size * size, -(-stop // size) * size
        rows = self._rows(info, name, first, last).reshape(-1, size // 2, 2, info.row_bytes)
        reordered: ndarray = rows.transpose(0, 2, 1, 3).reshape(-1, info.row_bytes)
        return reordered[start - first : stop - first]

    def _rows(self, info: TensorInfo, name: str, start: int, stop: int) -> ndarray:
        raw = np.empty((stop - start, info.row_bytes), np.uint8)
        offset = info.offset + start * info.row_bytes
        self._files[info.path].fill(array_bytes(raw), offset, name)
        return raw

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        for file in self._files.values():
            file.close()


def _predicting(metadata: Mapping[str, Any], family: Family | None) -> range:
    """The layers that predict further tokens."""
    if family is None or not family.more_layers:
        return range(0)
    count, more = (metadata.get(f"{family.gguf}.{key}", 0) for key in (LAYERS, MORE_LAYERS))
    known = isinstance(count, int) and isinstance(more, int)
    return range(count - more, count) if known else range(0)


def _layer(name: str) -> int:
    """The layer of a tensor by llama.cpp's name; -1: it is in none."""
    kind, number = [*name.split("."), ""][:2]
    return int(number) if kind == "blk" and number.isdecimal() else -1


def _flat(name: str, info: TensorInfo) -> TensorInfo:
    """The matrices or biases of all experts as one of all rows."""
    shape = flat_shape(name, info.shape)
    if shape == info.shape:
        return info
    if len(shape) == 1 and info.type not in PLAIN:
        raise UsageError(
            f"{info.path}: tensor {name} is a vector in {info.type}",
            "convert the model again with a current llama.cpp",
        )
    return replace(info, shape=shape, row_bytes=info.row_bytes // max(info.shape[1], 1))


def hf_name(name: str, family: Family | None = None) -> str:
    """Hugging Face's name of a tensor; one that has none there keeps its own."""
    kind, layer, stem, last = [*name.split(".", 3), "", "", ""][:4]
    hf_stem = _layer_names(family).get(stem)
    if kind != "blk" or hf_stem is None:
        return _MODEL.get(name, name)
    return f"model.layers.{layer}.{hf_stem}.{last}"


def gguf_name(name: str, family: Family | None = None) -> str:
    """llama.cpp's name of a tensor of Hugging Face's."""
    if not name.startswith("model.layers."):
        return next((ours for ours, theirs in _MODEL.items() if theirs == name), name)
    layer, _, tail = name.removeprefix("model.layers.").partition(".")
    stem, _, last = tail.rpartition(".")
    names = _layer_names(family)
    ours = next((ours for ours, theirs in names.items() if theirs == stem), stem)
    return f"blk.{layer}.{ours}.{last}"


def _layer_names(family: Family | None) -> dict[str, str]:
    return _LAYER if family is None else _LAYER | dict(family.gguf_names)


def _turned_heads(metadata: dict[str, Any], family: Family | None) -> dict[str, int]:
    """Heads of the tensors whose rows are paired; empty if rows are in Hugging Face's order."""
    if family is None or not family.gguf_pairs:
        return {}
    heads = metadata.get(f"{family.gguf}.attention.head_count")
    keys = metadata.get(f"{family.gguf}.attention.head_count_kv", heads)
    counts = {"q_proj": heads, "k_proj": keys}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _entry(name: str, info: TensorInfo) -> Entry:
    if not _readable(info.type):
        raise UsageError(
            f"{info.path}: tensor {name} is {info.type}, which trtla cannot read",
            "use a file of another type, such as Q8_0 or Q4_K_M",
        )
    return Entry(PLAIN.get(info.type, np.dtype(np.float32)), info.shape, info.offset)


@lru_cache
def _readable(kind: str) -> bool:
    """Return True for a plain type, or one that the library dequantises."""
    if kind in PLAIN or kind in BLOCK_TYPES:
        return True
    import gguf

    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    try:
        return bool(len(_dequantized(kind, np.zeros((1, size), np.uint8))))
    except NotImplementedError:
        return False


def _dequantized(kind: str, rows: ndarray) -> ndarray:
    if kind in BLOCK_TYPES:
        return dequantize_blocks(BLOCK_TYPES[kind], rows)
    import gguf

    # As one long row: the library works on groups of 16 rows otherwise, slowly.
    numbers: ndarray = gguf.dequantize(rows.reshape(1, -1), gguf.GGMLQuantizationType[kind])
    return numbers
