"""The numbers of a checkpoint: their types in torch, rounding to FP8, and tensors in pieces.

A weight in blocks passes as rows of bytes; `Dequantized` is for who needs numbers.

FP8 (e4m3) is per tensor: value = number x scale, with one float32 scale. Scales are TensorRT-LLM's
scaling factors: multipliers that undo the quantisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from trtla.errors import UsageError
from trtla.formats.blocks import BLOCK_TYPES, BlockTensor, dequantize_blocks
from trtla.formats.config import INT4, CheckpointConfig
from trtla.formats.plan import (
    EMBEDDING,
    LM_HEAD,
    Block,
    Span,
    Target,
    awq_input_scale,
    awq_scales,
    fp8_groups,
    single_rank,
    stored_plan,
)

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
"""The largest number of the type."""
CHUNK_BYTES = 2 * 2**20  # small enough to stay in the processor's cache between read and write
"""How much of a tensor is in memory at a time while streaming."""
_QKV = ("q.weight", "k.weight", "v.weight")
_SUMMED_BIASES = ("attention.dense.bias", "mlp.proj.bias")
_FLOAT16_OVERFLOW = 65520.0  # the smallest number that rounds to infinity


class TensorSource(Protocol):
    """Reads rows of the tensors that `plan.source_shapes` lists."""

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop), or elements of a vector, as stored, in memory of their own.

        What the checkpoint holds in FP8 comes in FP8, and what it holds in blocks as rows of blocks
        in uint8: only a source can quantise.
        """


Weight = Tensor | BlockTensor
"""A tensor of a model."""


class Dequantized:
    """A source whose quantised weights are read as float32 numbers.

    Args:
        source: reads rows of blocks.
        types: the type of every weight in blocks.
    """

    def __init__(self, source: TensorSource, types: Mapping[str, str]) -> None:
        self._source, self._types = source, types

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) as numbers."""
        rows = self._source.read(name, start, stop)
        kind = self._types.get(name)
        return rows if kind is None else dequantize_blocks(BLOCK_TYPES[kind], rows)


def pack_int4(codes: Tensor) -> Tensor:
    """TensorRT-LLM's int4 weights, int8 [outputs / 2, inputs]: even outputs are in the low halves.

    Args:
        codes: [outputs, inputs], whole numbers from -8 to 7; outputs are even.
    """
    low, high = codes.to(torch.int8).view(torch.uint8).view(-1, 2, codes.shape[1]).unbind(1)
    return (low & 15 | high << 4).view(torch.int8)


def unpack_int4(packed: Tensor) -> Tensor:
    """The codes of `pack_int4`, int8 [outputs, inputs]."""
    halves = torch.stack((packed << 4, packed), 1)  # shifting right brings the sign down
    return (halves >> 4).flatten(0, 1)


class AwqNumbers:
    """A source of W4A16_AWQ, of this project or modelopt, whose weights are read as numbers.

    A linear there multiplies its inputs by a vector first; here its weights are.

    Args:
        source: reads pairs of outputs, and scales.
        config: with W4A16_AWQ.
    """

    def __init__(self, source: TensorSource, config: CheckpointConfig) -> None:
        self._source, self._vectors = source, bool(config.quantization.pre_quant_scale)
        groups = fp8_groups(config)
        self._linear_of = {weight: name for name, group in groups.items() for weight in group}

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop), float32 of a linear's weight."""
        if name not in self._linear_of:
            return self._source.read(name, start, stop)
        even = start // 2
        codes = unpack_int4(self._source.read(name, even, -(-stop // 2)))
        codes = codes[start - 2 * even : stop - 2 * even]
        scales = self._source.read(awq_scales(name), start, stop).float()
        values = codes.view(*scales.shape, -1).float().mul_(scales[..., None]).flatten(1)
        if not self._vectors:
            return values
        vector = awq_input_scale(self._linear_of[name])
        return values.mul_(self._source.read(vector, 0, values.shape[1]).float())


def without_blocks(
    weights: Iterable[tuple[str, Weight]], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `full_tensors` with blocks dequantised, and q, k and v fused again."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, weight in weights:
        tensor = weight.dequantize().to(dtype) if isinstance(weight, BlockTensor) else weight
        prefix, _, last = name.rpartition(".attention.")
        if last not in _QKV:
            yield name, tensor
            continue
        layer = parts.setdefault(prefix, {})
        layer[last] = tensor.to(dtype)
        if len(layer) == len(_QKV):
            del parts[prefix]
            yield f"{prefix}.attention.qkv.weight", torch.cat([layer[part] for part in _QKV])


def torch_dtype(name: str) -> torch.dtype:
    """A checkpoint's type as torch's: float16, bfloat16, float32, float8_e4m3fn; blocks: uint8;
    int4: int8."""
    if name == INT4:
        return torch.int8
    found: torch.dtype = torch.uint8 if name in BLOCK_TYPES else getattr(torch, name)
    return found


def scale_of(largest: float) -> float:
    """The scale, in float32, with which the largest absolute value becomes E4M3_MAX.

    Of zeros it is 1: any scale gives them back.
    """
    return (torch.tensor(largest) / E4M3_MAX).item() or 1.0


def quantize(values: Tensor, scale: Tensor) -> Tensor:
    """The nearest FP8 numbers to values / scale; what lies beyond the range becomes +-448.

    Args:
        scale: float32, one element.
    """
    # Dividing in half precision would round twice.
    wide = torch.promote_types(values.dtype, torch.float32)
    return (values.to(wide) / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(E4M3)


def dequantize(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """FP8 numbers x scale in another type, rounded once."""
    wide = torch.promote_types(dtype, torch.float32)
    return (numbers.to(wide) * scale).to(dtype)


def llama3_frequencies(inverse: Tensor, scaling: Mapping[str, Any], trained: int) -> Tensor:
    """Rotary frequencies in llama3's scaling: long wavelengths are divided by the factor, short
    ones kept, those between interpolated.

    Args:
        inverse: the frequencies without scaling.
        trained: positions of the training, where the scaling does not say them.
    """
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    length = float(scaling.get("original_max_position_embeddings", trained))
    wavelengths = 2 * math.pi / inverse
    smooth = ((length / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * inverse / factor + smooth * inverse


def yarn_frequencies(
    inverse: Tensor, scaling: Mapping[str, Any], base: float, trained: int
) -> Tensor:
    """Rotary frequencies in yarn's scaling: those that turn seldom within the trained length are
    divided by the factor, fast ones kept, those between interpolated by their index.

    Args:
        inverse: the frequencies without scaling.
        trained: positions of the training, where the scaling does not say them.
    """
    size, factor = 2 * len(inverse), float(scaling["factor"])
    length = float(scaling.get("original_max_position_embeddings") or trained)

    def index(turns: float) -> float:
        """Of the frequency that turns so often."""
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = index(float(scaling.get("beta_fast") or 32))
    last = index(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    last += 0.001 if first == last else 0
    kept = 1 - ((torch.arange(len(inverse)).float() - first) / (last - first)).clamp(0, 1)
    divided = 1.0 / (factor * (1.0 / inverse))
    return divided * (1 - kept) + inverse * kept


def yarn_magnitude(scaling: Mapping[str, Any]) -> float:
    """What yarn multiplies cosines and sines by: attention to longer texts is flatter."""
    factor, explicit = float(scaling["factor"]), scaling.get("attention_factor")
    if explicit is not None:
        return float(explicit)

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    own, all_ = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return grown(own) / grown(all_) if own and all_ else grown(1.0)


def full_tensors(source: TensorSource, config: CheckpointConfig) -> Iterator[tuple[str, Weight]]:
    """Every tensor of the one-rank checkpoint of this model, one by one; no tied lm_head.

    Weights of W4A16_AWQ come as numbers.
    """
    return rank_tensors(source, single_rank(config), 0)


def rank_tensors(
    source: TensorSource, config: CheckpointConfig, rank: int
) -> Iterator[tuple[str, Weight]]:
    """What a rank of the config's mapping computes with, as `full_tensors`.

    Of several ranks each has its part of lm_head, and the first the biases of linears that are
    split by inputs: sums over the ranks have them once.
    """
    if config.awq_group_size:
        source = AwqNumbers(source, config)
        plain = config.quantization.model_copy(update={"quant_algo": None})
        config = config.model_copy(update={"quantization": plain})
    for target in stored_plan(config, rank):
        if rank and target.name.endswith(_SUMMED_BIASES):
            continue
        kind, whole = BLOCK_TYPES.get(target.dtype), _materialize(target, source)
        yield target.name, whole if kind is None else BlockTensor(kind, whole)


_COMPARED_ROWS = 1024


def equal_ends(source: TensorSource, rows: int) -> bool:
    """Whether embedding and lm_head hold the same numbers."""
    spans = ((row, min(row + _COMPARED_ROWS, rows)) for row in range(0, rows, _COMPARED_ROWS))
    return all(
        torch.equal(source.read(EMBEDDING, *span), source.read(LM_HEAD, *span)) for span in spans
    )


def _materialize(target: Target, source: TensorSource) -> Tensor:
    out, row = torch.empty(target.shape, dtype=torch_dtype(target.dtype)), 0
    for piece in stream(target, source):
        if piece.shape == target.shape:
            return piece  # small tensors come in one piece, nothing to put together
        out[row : row + len(piece)] = piece
        row += len(piece)
    return out


def stream(target: Target, source: TensorSource) -> Iterator[Tensor]:
    """The target's rows from top to bottom, in contiguous pieces of about CHUNK_BYTES."""
    for block in target.blocks:
        for start, stop in row_spans(block.rows, block.cols[1] if block.cols else 1):
            yield _piece(block, start, stop, source, torch_dtype(target.dtype))


def row_spans(rows: Span, width: int) -> Iterator[Span]:
    """Stretches of rows whose whole width takes about CHUNK_BYTES in float32."""
    first, last = rows
    step = max(1, CHUNK_BYTES // (4 * width))
    for start in range(first, last, step):
        yield start, min(start + step, last)


def _piece(block: Block, start: int, stop: int, source: TensorSource, dtype: torch.dtype) -> Tensor:
    if block.source is None:
        width = (block.cols[1] - block.cols[0],) if block.cols else ()
        return torch.zeros((stop - start, *width), dtype=dtype)
    rows = source.read(block.source, start, stop)
    part = rows[:, slice(*block.cols)] if block.cols else rows
    if dtype == torch.float16 != part.dtype:
        _check_float16(part, block.source)
    return part.to(dtype).contiguous()


def _check_float16(tensor: Tensor, name: str) -> None:
    low, high = tensor.aminmax()
    largest = max(-low.item(), high.item())
    if largest >= _FLOAT16_OVERFLOW:
        raise UsageError(
            f"tensor {name} holds {largest:.4g}, too large for float16",
            "convert with --dtype bfloat16 or --dtype float32",
        )
