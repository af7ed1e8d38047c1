"""Panels of weights laid out with NumPy, as native/matmul.h and native/blocks.h describe them."""

from __future__ import annotations

import numpy as np

BLOCK = 32  # inputs of a block in a panel
FOURS = BLOCK // 4


def plain_panels(rows, lanes, paired):
    """Bytes of [panels, inputs, 2 x lanes] of plain numbers; missing outputs are zero."""
    padded = _padded(rows, 2 * lanes)
    units = padded.view(f"i{4 if paired else padded.itemsize}")
    panels = units.reshape(-1, 2 * lanes, units.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(panels).view(np.uint8).reshape(-1)


def block_panels(weight, lanes):
    """Bytes of the panels of a `BlockTensor`; missing outputs are zero."""
    kind, width = weight.kind, 2 * lanes
    found = kind.unpack(_padded(weight.rows, width))
    codes = _packed_codes(found.codes.view(np.uint8), kind.bits, lanes)
    scales, factors, min_factors = found.scales, found.factors, found.min_factors
    if not kind.halves:  # an exponent
        scales = (np.frexp(scales)[1] + 127).astype(np.uint8)
    if kind.name == "Q2_K":  # both factors in a byte
        factors, min_factors = factors | min_factors << 4, None
    halves = _side_by_side(width, scales, found.minimums)
    if factors is None:
        parts = [np.repeat(half, kind.inputs // BLOCK, 1) for half in halves]
        return np.concatenate((*parts, codes), 2).reshape(-1)
    factors = _side_by_side(width, factors, min_factors)
    parts = [part.reshape(*codes.shape[:2], -1) for part in (*factors, codes)]
    blocks = np.concatenate(parts, 2).reshape(*halves[0].shape[:2], -1)
    return np.concatenate((*halves, blocks), 2).reshape(-1)


def alternate(lanes, *parts):
    """Rows of the parts in turns, `lanes` at a time."""
    each = [part.reshape(-1, lanes, *part.shape[1:]) for part in parts]
    return np.stack(each, axis=1).reshape(-1, *parts[0].shape[1:])


def _side_by_side(width, *parts):
    """A panel's outputs together: bytes [panels, columns, outputs] of those that are there."""
    panels = (part.reshape(-1, width, part.shape[1]) for part in parts if part is not None)
    return [np.ascontiguousarray(panel.transpose(0, 2, 1)).view(np.uint8) for panel in panels]


def _packed_codes(codes, bits, lanes):
    """[panels, blocks, bytes of codes] from uint8 [outputs, inputs]: see `Blocks::unpacked`."""
    fours = codes.reshape(-1, 2, lanes, codes.shape[1] // BLOCK, FOURS, 4)
    ordered = fours.transpose(0, 3, 4, 1, 2, 5)  # [panels, blocks, fours, halves, lanes, 4]
    if bits == 8:
        return ordered.reshape(*ordered.shape[:2], -1)
    if bits == 3:
        packed = _threes(ordered)
    else:
        packed = [*_planes(ordered, 0, min(bits, 4)), *_planes(ordered, 4, bits - 4)]
    whole = np.concatenate(packed, 2)
    return whole.reshape(*whole.shape[:2], -1)


def _planes(ordered, first, count):
    """`count` bits of each code, from bit `first` on: those of 8 / count fours in a byte."""
    if count < 1:
        return []
    each, some = 8 // count, ordered >> first & (1 << count) - 1
    fours = (some[:, :, four : four + each] for four in range(0, FOURS, each))
    shifts = (np.arange(each, dtype=np.uint8) * count).reshape(each, 1, 1, 1)
    return [np.bitwise_or.reduce(part << shifts, axis=2, keepdims=True) for part in fours]


def _threes(ordered):
    """Codes of 3 bits: two in a byte, with 2 bits of one of the last two, or their third bits."""
    first, second = ordered[:, :, 6:7], ordered[:, :, 7:8]
    more = [(first & 3) << 6, (second & 3) << 6, (first & 4) << 4 | (second & 4) << 5]
    fours = (
        (ordered[:, :, 2 * i : 2 * i + 1], ordered[:, :, 2 * i + 1 : 2 * i + 2]) for i in range(3)
    )
    return [one | other << 3 | bits for (one, other), bits in zip(fours, more, strict=True)]


def _padded(rows, width):
    missing = -len(rows) % width
    zeros = np.zeros((missing, *rows.shape[1:]), rows.dtype)
    return np.ascontiguousarray(np.concatenate((rows, zeros)))
