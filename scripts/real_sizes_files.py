"""GGUF files in the shapes of real models: random weights of any family, or a small model enlarged.

Both are Q4_0 and written tensor by tensor, with the tokenizer of the small model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import torch
from real_sizes_families import KINDS, Kind, factors, shapes, stored_name
from safetensors.torch import save_file
from scale_llama_weights import Scaler, Shape, Source

from trtla.errors import TrtlaError
from trtla.formats.blocks import BLOCK_TYPES
from trtla.formats.gguf.folder import model_folder
from trtla.formats.gguf.header import read_header
from trtla.formats.gguf.weights import GgufFile
from trtla.formats.torch_tensors import as_tensor

SHAPES = {
    "tiny": Shape(0, 64, 2, 4, 2, 16, 96),
    "1B": Shape(128256, 2048, 16, 32, 8, 64, 8192),
    "3B": Shape(128256, 3072, 28, 24, 8, 128, 8192),
    "8B": Shape(128256, 4096, 32, 32, 8, 128, 14336),
}
"""Of random weights; a vocabulary of 0 is the small model's."""
TIMES = 4
"""By which an enlarged model is wider: norms are exact where that is a power of four."""
_KIND = gguf.GGMLQuantizationType.Q4_0
_PER, _BLOCK = gguf.GGML_QUANT_SIZES[_KIND]
_SCALE = np.full(1, 0.01 / 8, np.float16).view(np.uint8)
_POWER = 118  # of two, about as large
Rows = Callable[[str, tuple[int, ...]], np.ndarray]
"""A tensor in the file, by Hugging Face's name and shape."""


def write_random(path: Path, sample: Path, size: str, kind: Kind = KINDS["llama"]) -> None:
    """Write random weights in one of `SHAPES`; 8B has an output matrix of its own."""
    metadata, draw = read_header(sample).metadata, np.random.default_rng(0)
    sizes = vars(SHAPES[size])
    sizes = {**sizes, "vocab_size": sizes["vocab_size"] or len(metadata["tokenizer.ggml.tokens"])}
    config = {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 8192, **sizes}
    config["tie_word_embeddings"] = size != "8B"

    def rows(_: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        return random_blocks(draw, _KIND.name, *shape)

    _write(path, metadata, kind, config, rows)


def random_blocks(draw: np.random.Generator, kind: str, outputs: int, inputs: int) -> np.ndarray:
    """Return rows of random codes with small scales, uint8 [outputs, bytes of a row]."""
    layout = BLOCK_TYPES[kind]
    row = layout.row_bytes(inputs)
    rows = np.frombuffer(bytearray(draw.bytes(outputs * row)), np.uint8).reshape(outputs, row)
    blocks = rows.reshape(outputs, -1, layout.nbytes)
    for place in layout.halves:
        blocks[..., place : place + 2] = _SCALE
    if not layout.halves:
        blocks[..., 0] = _POWER
    return rows


def write_enlarged(path: Path, sample: Path) -> None:
    """Write the small model, `TIMES` as wide, with the same predictions but for the rounding."""
    with TemporaryDirectory(dir=path.parent) as name:
        scaler = _scaler(sample, Path(name))
        new, config = scaler.new, scaler.config()
        heads = {"q_proj": new.num_attention_heads, "k_proj": new.num_key_value_heads}

        def rows(name: str, shape: tuple[int, ...]) -> np.ndarray:
            array = scaler.tensor(name).float().numpy()
            if len(shape) == 1:
                return array
            if count := heads.get(name.split(".")[-2]):  # pairs of rotary rows, as in llama.cpp
                array = array.reshape(count, 2, -1, shape[1]).swapaxes(1, 2).reshape(shape)
            return gguf.quantize(array, _KIND)

        _write(path, read_header(sample).metadata, KINDS["llama"], config, rows)


def _scaler(sample: Path, folder: Path) -> Scaler:
    """Of the enlarged model; `folder` gets the small one as safetensors."""
    weights = GgufFile(sample)
    whole = {name: weights.read(name, 0, one.shape[0]) for name, one in weights.entries.items()}
    tensors = {name: as_tensor(array) for name, array in whole.items()}
    save_file(tensors, folder / "model.safetensors")
    shutil.copy(model_folder(sample) / "config.json", folder)
    source = Source(folder)
    kept = ("vocab_size", "num_hidden_layers", "head_dim")
    sizes = {n: size if n in kept else TIMES * size for n, size in vars(source.shape).items()}
    return Scaler(source, Shape(**sizes), torch.float32)


def _nbytes(shape: tuple[int, ...]) -> int:
    return prod(shape) // _PER * _BLOCK if len(shape) == 2 else 4 * prod(shape)


def _write(
    path: Path, metadata: dict[str, Any], kind: Kind, config: dict[str, Any], rows: Rows
) -> None:
    found = {**shapes(kind, config), **factors(kind, config["head_dim"])}
    size = sum(map(_nbytes, found.values()))
    if (free := shutil.disk_usage(path.parent).free) < 1.1 * size:
        raise TrtlaError(
            f"{path} needs {size / 1e9:.1f} GB and {free / 1e9:.1f} are free",
            "free some space, or leave the size out with --sizes",
        )
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, kind.gguf)
    for key, value in _keys(metadata, kind, config).items():
        _add(writer, key, value)
    for name, shape in found.items():
        type_ = _KIND if len(shape) == 2 else None
        stored = (*shape[:-1], shape[-1] // _PER * _BLOCK) if type_ else shape
        dtype = np.dtype(np.uint8 if type_ else np.float32)
        writer.add_tensor_info(stored_name(kind, name), stored, dtype, _nbytes(shape), type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in found.items():
        writer.write_tensor_data(rows(name, shape))
    writer.close()
    part.rename(path)


def _keys(metadata: dict[str, Any], kind: Kind, config: dict[str, Any]) -> dict[str, Any]:
    """The small model's tokenizer, with tokens that stand for nothing, and the sizes."""
    kept = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    tokens, types = (kept.get(f"tokenizer.ggml.{one}", []) for one in ("tokens", "token_type"))
    more = config["vocab_size"] - len(tokens)
    kept["tokenizer.ggml.tokens"] = [*tokens, *(f"<|more{i}|>" for i in range(more))]
    if types:
        kept["tokenizer.ggml.token_type"] = [*types, *[4] * more]
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    own = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "rope.dimension_count": int(config["head_dim"] * kind.rotated),
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(theta),
        **kind.keys,
    }
    named = {f"{kind.gguf}.{key}": value for key, value in own.items()}
    return {**kept, "general.file_type": 2, **named}  # mostly Q4_0


def _add(writer: Any, key: str, value: Any) -> None:
    add = {str: writer.add_string, bool: writer.add_bool, list: writer.add_array}
    add |= {int: writer.add_uint32, float: writer.add_float32}
    add[type(value)](key, value)
