"""int8 and int4 weights: blocks of inputs with a scale each, chosen for the least squared error.

Rounding to the nearest code leaves the scale open. Candidates around the one that maps the block's
largest value to the last code are tried, as llama.cpp's make_qx_quants does, each with the scale
that fits its codes best. Errors may be weighed by how large the inputs are that meet a weight: the
mean square of each channel's activations, which is what AWQ (Lin et al., 2023) protects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from trtla.errors import UsageError
from trtla.formats.blocks import BLOCK_TYPES, BlockType
from trtla.formats.config import CheckpointConfig, Quantization
from trtla.formats.plan import EMBEDDING, LM_HEAD, hf_shapes
from trtla.formats.support import check_mapping
from trtla.formats.tensors import TensorSource

GROUP_SIZES = (32, 64, 128)
"""Inputs that share a scale."""
INTEGERS = {"int8": ("Q8_0", "Q8_G64", "Q8_G128"), "int4": ("Q4_0", "Q4_G64", "Q4_G128")}
"""The types of blocks of a dtype, by group size."""

_TRIED = {
    4: [-8 + 0.2 * step for step in range(-5, 6)],
    8: [127 + 0.5 * step for step in range(-8, 2)],
}
"""What the largest value of a block may become, by bits of a code. Twice as many gain nothing."""
_HALF_MAX = torch.finfo(torch.float16).max
_TINY = 1e-30
"""Instead of 0 where it divides a 0."""
_PIECE = 2**17
"""Numbers that are rounded at a time, so that they stay in the processor's cache."""
_LEAST_WEIGHT = 1e-3
"""Of the mean: channels that the calibration never saw still count a little."""


def integer_config(config: CheckpointConfig, dtype: str, group_size: int) -> CheckpointConfig:
    """The model with all linear weights in blocks; embedding and lm_head are int8 for int4 too."""
    if group_size not in GROUP_SIZES:
        raise UsageError(f"group size {group_size} is unknown", "use 32, 64 or 128")
    shapes = {name: shape for name, shape in hf_shapes(config).items() if len(shape) == 2}
    for name, (_, inputs) in shapes.items():
        if inputs % group_size:
            raise _indivisible(name, inputs, group_size, {width for _, width in shapes.values()})
    index = GROUP_SIZES.index(group_size)
    ends, layers = INTEGERS["int8"][index], INTEGERS[dtype][index]
    types = {name: ends if name in (EMBEDDING, LM_HEAD) else layers for name in shapes}
    result = config.model_copy(update={"quantization": Quantization(block_types=types)})
    check_mapping(result)
    return result


def _indivisible(name: str, inputs: int, group_size: int, widths: set[int]) -> UsageError:
    fits = [size for size in GROUP_SIZES if not any(width % size for width in widths)]
    return UsageError(
        f"group size {group_size} does not divide the {inputs} inputs of {name}",
        f"use --group-size {fits[-1]}" if fits else "no group size does; use another --dtype",
    )


class RoundedSource:
    """A model as a source of rows of blocks.

    Args:
        model: reads the unquantised weights.
        types: the type of blocks of every weight that gets them.
        importance: float32 [inputs], how much an error counts, by the weight's name.
    """

    def __init__(
        self, model: TensorSource, types: Mapping[str, str], importance: Mapping[str, Tensor]
    ) -> None:
        self._model, self._types, self._importance = model, types, importance

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop): blocks of a weight, else as stored."""
        rows = self._model.read(name, start, stop)
        if name not in self._types:
            return rows
        kind = BLOCK_TYPES[self._types[name]]
        check_numbers(name, rows, kind)
        return round_rows(kind, rows, self._importance.get(name))


def check_numbers(name: str, rows: Tensor, kind: BlockType) -> None:
    """Refuse rows of a weight that no scale of this type fits."""
    low, high = (value.item() for value in rows.aminmax())
    largest = high if high >= -low else low  # a NaN is neither, and is the low one then
    if not abs(largest / _last_code(kind)) <= _HALF_MAX:
        raise UsageError(
            f"tensor {name} holds {largest:.4g}, which {kind.name} has no scale for",
            "copy the weights again: the model itself can hardly compute with them",
        )


def round_rows(kind: BlockType, rows: Tensor, importance: Tensor | None = None) -> Tensor:
    """Rows of blocks, uint8 [outputs, bytes of a row], whose weighted squared error is small.

    Args:
        kind: one of `INTEGERS`.
        rows: [outputs, inputs], finite.
        importance: float32 [inputs], how much the error of each input counts; None: alike.
    """
    return torch.cat([_packed(kind, *found) for found in rounded(kind, rows, importance)])


def rounded(
    kind: BlockType,
    rows: Tensor,
    importance: Tensor | None = None,
    dtype: torch.dtype = torch.float16,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The `best_codes` of rows [outputs, inputs], some rows at a time.

    Args are those of `round_rows`, and the type of scales.
    """
    blocks = rows.shape[1] // kind.inputs
    weights = torch.ones(blocks, kind.inputs)
    if importance is not None:
        relative = importance / importance.mean().clamp_min(_TINY)
        weights = relative.clamp_min(_LEAST_WEIGHT).view(blocks, -1)
    for part in torch.split(rows, max(1, _PIECE // rows.shape[1])):
        yield best_codes(kind, part.float().view(len(part), blocks, -1), weights, dtype)


def best_codes(
    kind: BlockType, values: Tensor, weights: Tensor, dtype: torch.dtype = torch.float16
) -> tuple[Tensor, Tensor]:
    """Codes around 0 as float32, and scales, with the least error that the search finds.

    It is never above that of `nearest_codes`.

    Args:
        values: float32 [rows, blocks, inputs].
        weights: float32 [blocks, inputs].
        dtype: of scales.

    Returns:
        Codes like values, the nearest for their scales, and scales [rows, blocks, 1].
    """
    codes, scales = nearest_codes(kind, values, dtype)
    least = _error(values, codes, scales, weights)
    extreme = _extreme(values)
    weighted = values * weights
    best = torch.full_like(extreme, -1.0)
    found = torch.zeros_like(extreme)
    inverse = _inverse(extreme)
    for code in _TRIED[kind.bits]:
        tried = inverse * code
        _, gain = _fit(weighted, _codes(kind, values, tried), weights)
        better = gain > best
        best, found = torch.where(better, gain, best), torch.where(better, tried, found)
    near = _codes(kind, values, found)
    for _ in range(2):  # codes that are nearest for the scale as it is stored
        fitted = _fit(weighted, near, weights)[0].to(dtype)
        near = codes_of(kind, values, fitted)
        error = _error(values, near, fitted, weights)
        better = error < least
        least = torch.where(better, error, least)
        codes, scales = torch.where(better, near, codes), torch.where(better, fitted, scales)
    return codes, scales


def nearest_codes(
    kind: BlockType, values: Tensor, dtype: torch.dtype = torch.float16
) -> tuple[Tensor, Tensor]:
    """Plain rounding to nearest: the block's largest value becomes the last code, as in ggml."""
    scales = (_extreme(values) / _last_code(kind)).to(dtype)
    return codes_of(kind, values, scales), scales


def codes_of(kind: BlockType, values: Tensor, scales: Tensor) -> Tensor:
    """The nearest codes as float32 [rows, blocks, inputs], for scales [rows, blocks, 1]."""
    return _codes(kind, values, _inverse(scales.float()))


def _fit(weighted: Tensor, codes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The scale with the least error for codes of weighted values, and what it takes off it."""
    along = (weighted * codes).sum(-1, keepdim=True)
    square = (codes.square() * weights).sum(-1, keepdim=True).clamp_min(_TINY)
    return along / square, along.square() / square


def _last_code(kind: BlockType) -> int:
    """Where the largest value of a block goes: four bits reach further below zero than above."""
    return -8 if kind.bits == 4 else 127


def _extreme(values: Tensor) -> Tensor:
    """The value of largest size in every block with its sign, [rows, blocks, 1]."""
    low, high = values.aminmax(dim=-1, keepdim=True)
    return torch.where(-low > high, low, high)


def _inverse(scales: Tensor) -> Tensor:
    """1 / scale; 0 for a block of zeros."""
    return torch.where(scales == 0, 0.0, 1 / scales)


def _codes(kind: BlockType, values: Tensor, inverse: Tensor) -> Tensor:
    low, high = (-8, 7) if kind.bits == 4 else (-127, 127)
    return (values * inverse).round_().clamp_(low, high)


def _error(values: Tensor, codes: Tensor, scales: Tensor, weights: Tensor) -> Tensor:
    return (codes * scales.float()).sub_(values).square_().mul_(weights).sum(-1, keepdim=True)


def _packed(kind: BlockType, codes: Tensor, scales: Tensor) -> Tensor:
    """Rows of blocks: a float16 scale, and the codes."""
    whole = (codes + kind.zero).to(torch.int16).to(torch.uint8)
    if kind.bits == 4:
        low, high = whole.chunk(2, -1)
        whole = low | high << 4
    head = scales.contiguous().view(torch.uint8)
    return torch.cat((head, whole), -1).flatten(1)
