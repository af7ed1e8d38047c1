"""Rounding to blocks of inputs with a scale each, chosen for the least squared error.

Rounding to the nearest code leaves the scale open. The search tries candidates around the scale
that maps the block's largest value to the last code, as llama.cpp's make_qx_quants does, each with
the scale that fits its codes best. Errors may be weighted by the size of a weight's inputs: the
mean square of each channel's activations, which is what AWQ (Lin et al., 2023) protects.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.blocks import BlockType
from trtla.formats.tensors import FLOAT16, FLOAT32, cast
from trtla.runtime.threads import num_threads

INTEGERS = {"int8": ("Q8_0", "Q8_G64", "Q8_G128"), "int4": ("Q4_0", "Q4_G64", "Q4_G128")}
"""The types of blocks for a dtype, by group size."""
_TRIED = {
    4: [-8 + 0.2 * step for step in range(-5, 6)],
    8: [127 + 0.5 * step for step in range(-8, 2)],
}
"""Codes tried for a block's largest value, by bits of a code. Twice as many gain nothing."""
_HALF_MAX = float(np.finfo(np.float16).max)
_TINY = 1e-30
"""Replaces a divisor of 0 below a dividend of 0."""
_PIECE = 2**17
"""Numbers that a thread rounds at a time, so that they stay in the processor's cache."""
_LEAST_WEIGHT = 1e-3
"""The least weight of a channel, as a share of the mean: for channels that the calibration did not
reach."""


def check_numbers(name: str, rows: ndarray, kind: BlockType) -> None:
    """Refuse float32 rows of a weight that no scale of this type fits."""
    low, high = float(rows.min()), float(rows.max())
    largest = high if high >= -low else low  # a NaN is neither, and is the low one then
    if not abs(largest / _last_code(kind)) <= _HALF_MAX:
        raise UsageError(
            f"tensor {name} holds {largest:.4g}, which {kind.name} has no scale for",
            "copy the weights again: the model itself can hardly compute with them",
        )


def round_rows(kind: BlockType, rows: ndarray, importance: ndarray | None = None) -> ndarray:
    """Round rows to blocks, uint8 [outputs, bytes of a row], with a small weighted squared error.

    Args:
        kind: one of `INTEGERS`.
        rows: float32 [outputs, inputs], finite.
        importance: float32 [inputs], the weight of each input's error; None: equal.
    """
    return np.concatenate([_packed(kind, *coded) for coded in rounded(kind, rows, importance)])


def rounded(
    kind: BlockType,
    rows: ndarray,
    importance: ndarray | None = None,
    dtype: np.dtype[Any] = FLOAT16,
) -> Iterator[tuple[ndarray, ndarray]]:
    """Yield the `best_codes` of rows as in `round_rows`, some rows at a time."""
    blocks, size = rows.shape[1] // kind.inputs, max(1, _PIECE // rows.shape[1])
    weights = np.ones((blocks, kind.inputs), np.float32)
    if importance is not None:
        relative = importance / max(importance.mean(), np.float32(_TINY))
        weights = np.maximum(relative, np.float32(_LEAST_WEIGHT)).reshape(blocks, -1)

    def codes(start: int) -> tuple[ndarray, ndarray]:
        part = rows[start : start + size]
        with np.errstate(over="ignore", invalid="ignore"):  # 1 / scale of a block near zero
            return best_codes(kind, part.reshape(len(part), blocks, -1), weights, dtype)

    with ThreadPoolExecutor(num_threads()) as pool:
        yield from pool.map(codes, range(0, len(rows), size))


def best_codes(
    kind: BlockType, values: ndarray, weights: ndarray, dtype: np.dtype[Any] = FLOAT16
) -> tuple[ndarray, ndarray]:
    """Return codes around 0 as float32, and scales, with the least error that the search finds.

    It is never above that of `nearest_codes`.

    Args:
        values: float32 [rows, blocks, inputs].
        weights: float32 [blocks, inputs].
        dtype: of scales.

    Returns:
        Codes shaped like values, the nearest for their scales, and scales [rows, blocks, 1].
    """
    codes, scales = nearest_codes(kind, values, dtype)
    least = _error(values, codes, scales, weights)
    weighted, inverse = values * weights, _inverse(_extreme(values))
    best, chosen = np.full_like(inverse, -1.0), np.zeros_like(inverse)
    for code in _TRIED[kind.bits]:
        tried = inverse * np.float32(code)
        _, gain = _fit(weighted, _codes(kind, values, tried), weights)
        better = gain > best
        best, chosen = np.where(better, gain, best), np.where(better, tried, chosen)
    near = _codes(kind, values, chosen)
    for _ in range(2):  # to codes that are nearest for the scale as stored
        fitted = cast(_fit(weighted, near, weights)[0], dtype)
        near = codes_of(kind, values, fitted)
        error = _error(values, near, fitted, weights)
        better = error < least
        least = np.where(better, error, least)
        codes, scales = np.where(better, near, codes), np.where(better, fitted, scales)
    return codes, scales


def nearest_codes(
    kind: BlockType, values: ndarray, dtype: np.dtype[Any] = FLOAT16
) -> tuple[ndarray, ndarray]:
    """Round to nearest: the block's largest value becomes the last code, as in ggml."""
    scales = cast(_extreme(values) / np.float32(_last_code(kind)), dtype)
    return codes_of(kind, values, scales), scales


def codes_of(kind: BlockType, values: ndarray, scales: ndarray) -> ndarray:
    """Return the nearest codes as float32 [rows, blocks, inputs], for scales [rows, blocks, 1]."""
    return _codes(kind, values, _inverse(cast(scales, FLOAT32)))


def _fit(weighted: ndarray, codes: ndarray, weights: ndarray) -> tuple[ndarray, ndarray]:
    """Return the scale with the least error for codes of weighted values, and the error's
    reduction."""
    along = np.einsum("rbi,rbi->rb", weighted, codes)[..., None]
    square = np.einsum("rbi,rbi,bi->rb", codes, codes, weights)[..., None]
    square = np.maximum(square, np.float32(_TINY))
    scales: ndarray = along / square
    reduction: ndarray = np.square(along) / square
    return scales, reduction


def _last_code(kind: BlockType) -> int:
    """Return the code of a block's largest value: four bits reach further below zero than above."""
    return -8 if kind.bits == 4 else 127


def _extreme(values: ndarray) -> ndarray:
    """Return the value of largest size in every block with its sign, [rows, blocks, 1]."""
    low, high = values.min(-1, keepdims=True), values.max(-1, keepdims=True)
    extreme: ndarray = np.where(-low > high, low, high)
    return extreme


def _inverse(scales: ndarray) -> ndarray:
    """Return 1 / scale; 0 for a block of zeros, and of values so small that it is infinite."""
    inverse = np.zeros_like(scales)
    with np.errstate(over="ignore"):
        np.divide(np.float32(1), scales, out=inverse, where=scales != 0)
    inverse[np.isinf(inverse)] = 0
    return inverse


def _codes(kind: BlockType, values: ndarray, inverse: ndarray) -> ndarray:
    low, high = (-8, 7) if kind.bits == 4 else (-127, 127)
    codes: ndarray = values * inverse
    np.rint(codes, out=codes)
    np.clip(codes, low, high, out=codes)
    return codes


def _error(values: ndarray, codes: ndarray, scales: ndarray, weights: ndarray) -> ndarray:
    errors: ndarray = codes * cast(scales, FLOAT32)
    errors -= values
    sums: ndarray = np.einsum("rbi,rbi,bi->rb", errors, errors, weights)
    return sums[..., None]


def _packed(kind: BlockType, codes: ndarray, scales: ndarray) -> ndarray:
    """Pack rows of blocks: a float16 scale, and the codes."""
    whole = (codes + np.float32(kind.zero)).astype(np.int16).astype(np.uint8)
    if kind.bits == 4:
        low, high = np.split(whole, 2, -1)
        whole = low | high << 4
    head = np.ascontiguousarray(scales).view(np.uint8)
    return np.concatenate((head, whole), -1).reshape(len(codes), -1)
