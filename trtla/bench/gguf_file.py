"""An engine's weights as a GGUF file for llama.cpp: its names, its layout, its metadata.

Linear weights and the embedding get the type asked for, norms and biases float32; quantised weights
are dequantised. There is no vocabulary in the file: benchmarks feed token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtla.errors import TrtlaError, UsageError
from trtla.formats.config import QWEN2, CheckpointConfig
from trtla.formats.engine import Engine
from trtla.formats.tensors import E4M3, dequantize, without_blocks
from trtla.runtime.models.layers import frequencies

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
_SCALE = "weights_scaling_factor"
_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_BITS = {torch.float32: torch.float32, torch.float16: torch.float16, torch.bfloat16: torch.int16}
"""Types that NumPy has, to carry the bits."""


def write_gguf(path: Path, engine: Engine, dtype: torch.dtype) -> None:
    """Write an engine's weights; needs the package `gguf`.

    Raises:
        UsageError: the weights cannot be read, or llama.cpp has no such rotary scaling.
    """
    import gguf

    config = engine.config.pretrained_config
    writer = gguf.GGUFWriter(path, "qwen2" if config.architecture == QWEN2 else "llama")
    try:
        _add_metadata(writer, config, dtype)
        scales = _add_infos(writer, engine, dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for piece in _pieces(without_blocks(engine.weights(), dtype), config):
            writer.write_tensor_data(piece.array(dtype, scales))
    finally:
        writer.close()


def ggml_type(dtype: torch.dtype) -> Any:
    """The type in ggml's numbering; needs the package `gguf`."""
    import gguf

    return gguf.GGMLQuantizationType[_TYPES[dtype]]


def _add_metadata(writer: Any, config: CheckpointConfig, dtype: torch.dtype) -> None:
    import gguf

    writer.add_file_type(gguf.LlamaFileType[_file_type(dtype)])
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


def _add_infos(writer: Any, engine: Engine, dtype: torch.dtype) -> dict[str, Tensor]:
    """Announce all tensors, which the file does before the first one; returns the FP8 scales."""
    scales: dict[str, Tensor] = {}

    def noted() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in without_blocks(engine.weights(), dtype):
            if name.endswith(_SCALE):
                scales[name.removesuffix(_SCALE) + "weight"] = tensor
            yield name, tensor

    for piece in _pieces(noted(), engine.config.pretrained_config):
        own = piece.dtype(dtype)
        size = piece.tensor.numel() * own.itemsize
        kind = ggml_type(own)
        writer.add_tensor_info(piece.name, piece.tensor.shape, None, size, raw_dtype=kind)
    return scales


@dataclass(frozen=True, slots=True)
class _Piece:
    """One tensor of the file, still as it came."""

    name: str
    tensor: Tensor
    source: str = ""
    """The checkpoint tensor that it is, or is a part of."""
    heads: int = 0
    """Heads whose rows are paired: partners of the rotation are neighbours in its `llama`."""

    def dtype(self, wanted: torch.dtype) -> torch.dtype:
        """Its type in the file: llama.cpp adds and multiplies vectors in float32 only."""
        return wanted if self.tensor.dim() > 1 else torch.float32

    def array(self, wanted: torch.dtype, scales: dict[str, Tensor]) -> Any:
        """What is written, as a NumPy array."""
        tensor, dtype = self.tensor, self.dtype(wanted)
        if tensor.dtype == E4M3:
            tensor = dequantize(tensor, scales[self.source], dtype)
        if self.heads:
            halves = tensor.reshape(self.heads, 2, -1, *tensor.shape[1:])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        return tensor.to(dtype).contiguous().view(_BITS[dtype]).numpy()


def _pieces(weights: Iterable[tuple[str, Tensor]], config: CheckpointConfig) -> Iterator[_Piece]:
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


def _layer_pieces(name: str, tensor: Tensor, config: CheckpointConfig) -> Iterator[_Piece]:
    layer, _, rest = name.removeprefix(_LAYER).partition(".")
    stem, _, kind = rest.rpartition(".")
    if stem == "attention.qkv":
        heads = (config.num_attention_heads, config.num_key_value_heads)
        sizes = [number * config.head_size for number in (*heads, heads[1])]
        paired = (0, 0, 0) if config.architecture == QWEN2 else (*heads, 0)
        for letter, turned, part in zip("qkv", paired, torch.split(tensor, sizes), strict=True):
            yield _Piece(f"blk.{layer}.attn_{letter}.{kind}", part, name, turned)
    elif stem in _LAYER_NAMES:
        yield _Piece(f"blk.{layer}.{_LAYER_NAMES[stem]}.{kind}", tensor, name)
    else:
        raise TrtlaError(f"GGUF has no place for {name}", "omit llama.cpp from --compare")
