"""The numbers of a checkpoint: their types in NumPy, rounding to FP8, and tensors in pieces.

A weight in blocks passes as rows of bytes; `Dequantized` turns it into numbers.

FP8 (e4m3) is per tensor: value = number x scale, with one float32 scale. Scales are TensorRT-LLM's
scaling factors: multipliers that undo the quantisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.blocks import BLOCK_TYPES, BlockTensor, BlockType, dequantize_blocks
from trtla.formats.config import INT4, CheckpointConfig
from trtla.formats.plan import (
    Block,
    Span,
    Target,
    awq_input_scale,
    awq_scales,
    fp8_groups,
    stored_plan,
)
from trtla.formats.shapes import EMBEDDING, LM_HEAD

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
_PIECE = 2**15  # numbers: three buffers of them stay in a core's cache
_FLOAT16_OVERFLOW = 65520.0  # the smallest number that rounds to infinity
_SIGN, _EXPONENT = 0x80000000, 0x7F800000
_LEAST = 113 << 23  # the exponent of float16's smallest normal number
_WIDER = 13  # bits by which float32's mantissa is longer
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E4M3_MAX = 448.0
"""The largest number of the type."""
CHUNK_BYTES = 2 * 2**20  # small enough to stay in the processor's cache between read and write
"""Bytes of a tensor that are in memory at a time while streaming."""
_QKV = ("q.weight", "k.weight", "v.weight")
_SUMMED_BIASES = ("attention.dense.bias", ".proj.bias")


class TensorSource(Protocol):
    """Reads rows of the tensors that `plan.source_shapes` lists."""

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop), or elements of a vector, as stored, in memory of their own.

        Tensors that the checkpoint has in FP8 come in FP8, those in blocks as rows of blocks in
        uint8: only a source can quantise.
        """


class FileSource(TensorSource, Protocol):
    """A source that reads from files, and keeps them open from the first row on."""

    def close(self) -> None:
        """Close the files; the next read opens them again."""


Weight = ndarray | BlockTensor
"""A tensor of a model."""


class Dequantized:
    """A source whose weights in blocks, of some types, are read as float32 numbers."""

    def __init__(self, source: FileSource, types: Mapping[str, str]) -> None:
        self._source, self._types = source, types

    def read(self, name: str, start: int, stop: int) -> ndarray:
        rows = self._source.read(name, start, stop)
        kind = self._types.get(name)
        return rows if kind is None else dequantize_blocks(BLOCK_TYPES[kind], rows)

    def close(self) -> None:
        self._source.close()


def pack_int4(codes: ndarray) -> ndarray:
    """TensorRT-LLM's int4 weights, int8 [outputs / 2, inputs]: even outputs are in the low halves.

    Args:
        codes: [outputs, inputs], whole numbers from -8 to 7; outputs are even.
    """
    pairs = codes.astype(np.int8).view(np.uint8).reshape(-1, 2, codes.shape[1])
    return (pairs[:, 0] & 15 | pairs[:, 1] << 4).view(np.int8)


def unpack_int4(packed: ndarray) -> ndarray:
    """The codes of `pack_int4`, int8 [outputs, inputs]."""
    halves = np.stack((packed << 4, packed), 1) >> 4  # shifting right brings the sign down
    return halves.reshape(-1, packed.shape[1])


class AwqNumbers:
    """A source of W4A16_AWQ, of this project or modelopt, whose weights are read as numbers.

    A linear there multiplies its inputs by a vector first; here its weights are.
    """

    def __init__(self, source: TensorSource, config: CheckpointConfig) -> None:
        self._source, self._vectors = source, bool(config.quantization.pre_quant_scale)
        groups = fp8_groups(config)
        self._linear_of = {weight: name for name, group in groups.items() for weight in group}

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop), float32 of a linear's weight."""
        if name not in self._linear_of:
            return self._source.read(name, start, stop)
        even = start // 2
        codes = unpack_int4(self._source.read(name, even, -(-stop // 2)))
        codes = codes[start - 2 * even : stop - 2 * even]
        scales = cast(self._source.read(awq_scales(name), start, stop), FLOAT32)
        grouped = codes.reshape(*scales.shape, -1).astype(np.float32) * scales[..., None]
        values: ndarray = grouped.reshape(len(codes), -1)
        if self._vectors:
            vector = awq_input_scale(self._linear_of[name])
            values *= cast(self._source.read(vector, 0, values.shape[1]), FLOAT32)
        return values


def without_blocks(
    weights: Iterable[tuple[str, Weight]], dtype: np.dtype[Any]
) -> Iterator[tuple[str, ndarray]]:
    """The tensors of `rank_tensors` with blocks dequantised, and q, k and v fused again."""
    parts: dict[str, dict[str, ndarray]] = {}
    for name, weight in weights:
        array = cast(weight.dequantize(), dtype) if isinstance(weight, BlockTensor) else weight
        prefix, _, last = name.rpartition(".attention.")
        if last not in _QKV:
            yield name, array
            continue
        layer = parts.setdefault(prefix, {})
        layer[last] = cast(array, dtype)
        if len(layer) == len(_QKV):
            del parts[prefix]
            yield f"{prefix}.attention.qkv.weight", np.concatenate([layer[p] for p in _QKV])


def numpy_dtype(name: str) -> np.dtype[Any]:
    """A checkpoint's type as NumPy's: float16, bfloat16, float32, float8_e4m3fn; blocks: uint8;
    int4: int8."""
    return np.dtype("int8" if name == INT4 else "uint8" if name in BLOCK_TYPES else name)


def scale_of(largest: float) -> float:
    """The scale, in float32, with which the largest absolute value becomes E4M3_MAX.

    Of zeros it is 1: any scale gives them back.
    """
    return float(np.float32(largest) / np.float32(E4M3_MAX)) or 1.0


def quantize(values: ndarray, scale: float) -> ndarray:
    """The nearest FP8 numbers to values / scale, in float32; beyond the range they are +-448."""
    # Dividing in half precision would round twice.
    divided = cast(values, FLOAT32) / np.float32(scale)
    numbers: ndarray = divided.clip(-E4M3_MAX, E4M3_MAX).astype(E4M3)
    return numbers


def dequantize(numbers: ndarray, scale: ndarray, dtype: np.dtype[Any]) -> ndarray:
    """FP8 numbers x scale in another type, rounded once."""
    return cast(numbers.astype(np.float32) * scale, dtype)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a model that is still in its files; threads may read at the same time."""

    target: Target
    source: TensorSource

    @property
    def kind(self) -> BlockType | None:
        """The type of its blocks; None: it holds plain numbers."""
        return BLOCK_TYPES.get(self.target.dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the rows that `read` gives; uint8 for blocks."""
        return numpy_dtype(self.target.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs of a matrix."""
        rows, *width = self.target.shape
        if self.kind is not None:
            width = [width[0] // self.kind.nbytes * self.kind.inputs]
        return (rows, *width)

    def read(self, start: int, stop: int) -> ndarray:
        """Rows [start, stop), of numbers or of blocks, in memory of their own."""
        pieces, first = [], 0
        for block in self.target.blocks:
            last = first + block.height
            if max(start, first) < min(stop, last):
                move = block.rows[0] - first
                rows = max(start, first) + move, min(stop, last) + move
                pieces.append(_piece(block, *rows, self.source, self.dtype))
            first = last
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def load(self) -> Weight:
        """All of it."""
        kind, tensor = self.kind, _materialize(self.target, self.source)
        return tensor if kind is None else BlockTensor(kind, tensor)


def rank_tensors(
    source: TensorSource, config: CheckpointConfig, rank: int
) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors that a rank computes with, in the order of its file, without a tied lm_head.

    Weights of W4A16_AWQ come as numbers. Of several ranks each has its part of lm_head, and the
    first the biases of linears that are split by inputs: sums over the ranks have them once.
    """
    if config.awq_group_size:
        source = AwqNumbers(source, config)
        plain = config.quantization.model_copy(update={"quant_algo": None})
        config = config.model_copy(update={"quantization": plain})
    for target in stored_plan(config, rank):
        if rank and target.name.endswith(_SUMMED_BIASES):
            continue
        yield target.name, StoredTensor(target, source)


def equal_ends(source: FileSource, rows: int) -> bool:
    """Return True if embedding and lm_head hold the same numbers."""
    spans = ((row, min(row + 1024, rows)) for row in range(0, rows, 1024))
    with closing(source):
        return all(
            np.array_equal(source.read(EMBEDDING, *span), source.read(LM_HEAD, *span))
            for span in spans
        )


def _materialize(target: Target, source: TensorSource) -> ndarray:
    out, row = np.empty(target.shape, numpy_dtype(target.dtype)), 0
    for piece in stream(target, source):
        if piece.shape == target.shape:
            return piece  # small tensors come in one piece, nothing to put together
        out[row : row + len(piece)] = piece
        row += len(piece)
    return out


def stream(target: Target, source: TensorSource) -> Iterator[ndarray]:
    """The target's rows from top to bottom, in contiguous pieces of about CHUNK_BYTES."""
    for block in target.blocks:
        for start, stop in row_spans(block.rows, block.cols[1] if block.cols else 1):
            yield _piece(block, start, stop, source, numpy_dtype(target.dtype))


def row_spans(rows: Span, width: int) -> Iterator[Span]:
    """Stretches of rows whose whole width takes about CHUNK_BYTES in float32."""
    first, last = rows
    step = max(1, CHUNK_BYTES // (4 * width))
    for start in range(first, last, step):
        yield start, min(start + step, last)


def _piece(
    block: Block, start: int, stop: int, source: TensorSource, dtype: np.dtype[Any]
) -> ndarray:
    if block.source is None:
        width = (block.cols[1] - block.cols[0],) if block.cols else ()
        return np.zeros((stop - start, *width), dtype)
    rows = source.read(block.source, start, stop)
    part = rows[:, slice(*block.cols)] if block.cols else rows
    if dtype == FLOAT16 != part.dtype and overflows_float16(part):
        raise UsageError(
            f"tensor {block.source} holds {largest(part):.4g}, too large for float16",
            "convert with --dtype bfloat16 or --dtype float32",
        )
    return np.ascontiguousarray(cast(part, dtype))


def cast(values: ndarray, dtype: np.dtype) -> ndarray:
    """The values in another type; themselves if they have it."""
    if values.dtype == dtype:
        return values
    if values.dtype == BFLOAT16:
        wide = np.left_shift(values.view(np.uint16), 16, dtype=np.uint32).view(FLOAT32)
        return wide if dtype == FLOAT32 else cast(wide, dtype)
    if values.dtype == FLOAT32 and dtype == FLOAT16 and largest(values) < _FLOAT16_OVERFLOW:
        return _halved(values)
    with np.errstate(over="ignore"):  # it rounds to infinity
        return values.astype(dtype)


def overflows_float16(values: ndarray) -> bool:
    """Return True if a number, or an infinity, becomes an infinity in float16."""
    return largest(values) >= _FLOAT16_OVERFLOW


def largest(values: ndarray) -> float:
    """The largest absolute value; NaN if any value is NaN, 0 without values."""
    if not values.size:
        return 0.0
    wide = cast(values, FLOAT32) if values.dtype.itemsize < FLOAT32.itemsize else values
    return float(np.maximum(-wide.min(), wide.max()))


def _halved(values: ndarray) -> ndarray:
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(len(flat), np.uint16)
    size = min(_PIECE, len(flat))
    buffers = np.empty((2, size), np.uint32)
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE].view(np.uint32)
        out[start : start + _PIECE] = _half_bits(piece, *buffers[:, : len(piece)])
    return out.view(np.float16).reshape(values.shape)


def _half_bits(bits: ndarray, units: ndarray, sums: ndarray) -> ndarray:
    """The bits of float16 numbers, made in `sums`.

    A float32 number whose last bit is worth as much as that of the result is added: the sum is
    rounded right, and its mantissa is the result's with the leading one.
    """
    np.bitwise_and(bits, _EXPONENT, out=units)
    np.maximum(units, _LEAST, out=units)
    np.bitwise_and(bits, _SIGN - 1, out=sums)
    units += _WIDER << 23
    np.add(sums.view(np.float32), units.view(np.float32), out=sums.view(np.float32))
    sums -= units
    units -= _LEAST + (_WIDER << 23)
    units >>= _WIDER
    sums += units
    np.right_shift(bits, 16, out=units)
    units &= _SIGN >> 16
    sums |= units
    return sums
