"""An engine's weights as a GGUF file for llama.cpp: its names, its layout, its metadata.

Linear weights and the embedding get the type asked for, norms and biases float32. Blocks of ggml's
types stay as they are, or are dequantised as all others. There is no vocabulary in the file:
benchmarks feed token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtla.errors import TrtlaError, UsageError
from trtla.formats.blocks import BlockTensor
from trtla.formats.config import BLOCK_SIZES, QWEN2, CheckpointConfig
from trtla.formats.engine import Engine
from trtla.formats.tensors import E4M3, Weight, dequantize, without_blocks
from trtla.runtime.models.rotary import frequencies
from trtla.runtime.models.tensors import numbers

_MODEL_NAMES = {
    "transformer.vocab_embedding": "token_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "attention.dense": "attn_output",
    "post_layernorm": "ffn_norm",
    "mlp.fc": "ffn_gate",
    "mlp.gate": "ffn_up",
    "mlp.proj": "ffn_down",
}
_LAYER = "transformer.layers."
_GGML = tuple(name for name in BLOCK_SIZES if "_G" not in name)
"""Types of blocks that ggml has too."""
_SCALE = "weights_scaling_factor"
_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_BITS = {torch.float32: torch.float32, torch.float16: torch.float16, torch.bfloat16: torch.int16}
"""Types that NumPy has, to carry the bits."""


def write_gguf(
    path: Path, engine: Engine, dtype: torch.dtype, *, keep_blocks: bool = False
) -> None:
    """Write an engine's weights; needs the package `gguf`.

    Args:
        dtype: of weights, but for the blocks that are kept.

    Raises:
        UsageError: the weights cannot be read, or llama.cpp has no such rotary scaling.
    """
    import gguf

    config = engine.config.pretrained_config
    writer = gguf.GGUFWriter(path, "qwen2" if config.architecture == QWEN2 else "llama")
    try:
        _add_metadata(writer, config)
        kept = keep_blocks and any(kind in _GGML for kind in config.block_types.values())
        if not kept:  # it is then the type of most weights
            writer.add_file_type(gguf.LlamaFileType[_file_type(dtype)])
        weights = partial(_weights, engine, dtype, kept=kept)
        scales = _add_infos(writer, weights(), config, dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for piece in _pieces(weights(), config):
            writer.write_tensor_data(piece.array(dtype, scales))
    finally:
        writer.close()


def ggml_type(dtype: torch.dtype) -> Any:
    """The type in ggml's numbering; needs the package `gguf`."""
    return _ggml(_TYPES[dtype])


def _ggml(name: str) -> Any:
    import gguf

    return gguf.GGMLQuantizationType[name]


def _weights(engine: Engine, dtype: torch.dtype, *, kept: bool) -> Iterator[tuple[str, Weight]]:
    """The engine's tensors; blocks that are not kept or no type of ggml's are dequantised."""
    if not kept:
        yield from without_blocks(engine.weights(), dtype)
        return
    for name, weight in engine.weights():
        foreign = isinstance(weight, BlockTensor) and weight.kind.name not in _GGML
        yield name, numbers(weight).to(dtype) if foreign else weight


def _add_metadata(writer: Any, config: CheckpointConfig) -> None:
    import gguf

    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_rope_freq_base(config.rotary_base)
    writer.add_tokenizer_model("no_vocab")
    if config.rope_type == "dynamic":
        raise UsageError(
            "llama.cpp does not support dynamic rotary scaling", "omit llama.cpp from --compare"
        )
    if config.rope_type == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float((config.rotary_scaling or {})["factor"]))


def _file_type(dtype: torch.dtype) -> str:
    return "ALL_F32" if dtype == torch.float32 else f"MOSTLY_{_TYPES[dtype]}"


def _add_infos(
    writer: Any, weights: Iterable[tuple[str, Weight]], config: CheckpointConfig, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Announce all tensors, which the file does before the first one; returns the FP8 scales."""
    scales: dict[str, Tensor] = {}

    def noted() -> Iterator[tuple[str, Weight]]:
        for name, tensor in weights:
            if name.endswith(_SCALE):
                scales[name.removesuffix(_SCALE) + "weight"] = numbers(tensor)
            yield name, tensor

    for piece in _pieces(noted(), config):
        kind, size = piece.stored(dtype)
        writer.add_tensor_info(piece.name, piece.tensor.shape, None, size, raw_dtype=kind)
    return scales


@dataclass(frozen=True, slots=True)
class _Piece:
    """One tensor of the file, still as it came."""

    name: str
    tensor: Weight
    source: str = ""
    """The checkpoint tensor that it is, or is a part of."""
    heads: int = 0
    """Heads whose rows are paired: partners of the rotation are neighbours in its `llama`."""

    def _dtype(self, wanted: torch.dtype) -> torch.dtype:
        """Of numbers: llama.cpp adds and multiplies vectors in float32 only."""
        return wanted if len(self.tensor.shape) > 1 else torch.float32

    def stored(self, wanted: torch.dtype) -> tuple[Any, int]:
        """Its type in the file, in ggml's numbering, and bytes."""
        if isinstance(self.tensor, BlockTensor):
            return _ggml(self.tensor.kind.name), self.tensor.rows.nbytes
        dtype = self._dtype(wanted)
        return ggml_type(dtype), self.tensor.numel() * dtype.itemsize

    def array(self, wanted: torch.dtype, scales: dict[str, Tensor]) -> Any:
        """What is written, as a NumPy array."""
        if isinstance(self.tensor, BlockTensor):
            return self._in_order(self.tensor.rows).contiguous().numpy()
        tensor, dtype = self.tensor, self._dtype(wanted)
        if tensor.dtype == E4M3:
            tensor = dequantize(tensor, scales[self.source], dtype)
        return self._in_order(tensor).to(dtype).contiguous().view(_BITS[dtype]).numpy()

    def _in_order(self, rows: Tensor) -> Tensor:
        if not self.heads:
            return rows
        halves = rows.reshape(self.heads, 2, -1, *rows.shape[1:])
        return halves.transpose(1, 2).reshape(rows.shape)


def _pieces(weights: Iterable[tuple[str, Weight]], config: CheckpointConfig) -> Iterator[_Piece]:
    """The file's tensors, in the order of the checkpoint's."""
    if config.rope_type == "llama3":
        plain = config.model_copy(update={"rotary_scaling": None})
        yield _Piece("rope_freqs.weight", frequencies(plain) / frequencies(config))
    for name, tensor in weights:
        if name.endswith("_scaling_factor"):
            continue
        stem, _, kind = name.rpartition(".")
        if stem in _MODEL_NAMES:
            yield _Piece(f"{_MODEL_NAMES[stem]}.{kind}", tensor, name)
        else:
            yield from _layer_pieces(name, tensor, config)


def _layer_pieces(name: str, tensor: Weight, config: CheckpointConfig) -> Iterator[_Piece]:
    layer, _, rest = name.removeprefix(_LAYER).partition(".")
    stem, _, kind = rest.rpartition(".")
    heads = (config.num_attention_heads, config.num_key_value_heads)
    turned = (0, 0, 0) if config.architecture == QWEN2 else (*heads, 0)
    paired = dict(zip("qkv", turned, strict=True))
    letter = stem.removeprefix("attention.")
    if stem == "attention.qkv":
        sizes = [number * config.head_size for number in (*heads, heads[1])]
        for one, part in zip("qkv", torch.split(numbers(tensor), sizes), strict=True):
            yield _Piece(f"blk.{layer}.attn_{one}.{kind}", part, name, paired[one])
    elif letter in paired:
        yield _Piece(f"blk.{layer}.attn_{letter}.{kind}", tensor, name, paired[letter])
    elif stem in _LAYER_NAMES:
        yield _Piece(f"blk.{layer}.{_LAYER_NAMES[stem]}.{kind}", tensor, name)
    else:
        raise TrtlaError(f"GGUF has no place for {name}", "omit llama.cpp from --compare")
