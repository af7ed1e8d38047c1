"""Quantised weights in blocks: ggml's types, as GGUF files store them, and two of our own.

A row of a weight is cut into blocks of inputs. A block holds small integers, its codes, with a
scale, and perhaps a minimum: value = scale x (code - zero) + minimum. Where a type has a table, a
code stands for the table's number. The layouts are those of ggml-common.h; Q8_G and Q4_G are Q8_0
and Q4_0 with larger blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from trtla.formats.config import BLOCKS


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of blocks taken apart, without loss.

    The number of a code is `scale x factor x (code - zero) + minimum x min_factor`, or `scale x
    factor x table[code]` where the type has a table; factors are 1 where there are none.
    """

    codes: ndarray
    """int8 [rows, inputs]: from 0 on, but of 8 bits signed."""
    scales: ndarray
    """float16 [rows, blocks]; float32 where they are powers of two."""
    minimums: ndarray | None = None
    """float16 [rows, blocks]."""
    factors: ndarray | None = None
    """int8 or uint8 [rows, groups], several groups a block."""
    min_factors: ndarray | None = None
    """uint8 [rows, groups]."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """A layout of blocks."""

    name: str
    inputs: int
    """Numbers in a block."""
    nbytes: int
    """Bytes of a block."""
    bits: int
    """Bits of a code."""
    zero: int
    """The code of 0 where there is neither minimum nor table."""
    table: tuple[int, ...]
    """The numbers of codes of 4 bits, from -128 to 127; empty: a code stands for itself."""
    halves: tuple[int, ...]
    """The places in a block of its scale, and of its minimum, in float16; without them the scale is
    a power of two, whose exponent is the block's first byte."""
    _unpack: Callable[[BlockType, ndarray], Codes]
    """Takes uint8 [rows, blocks, bytes of a block] apart; codes are [rows, blocks, inputs]."""

    def row_bytes(self, inputs: int) -> int:
        """Bytes of a row; `inputs` is a multiple of the block's."""
        return inputs // self.inputs * self.nbytes

    def unpack(self, rows: ndarray) -> Codes:
        """Take rows of blocks, uint8 [rows, bytes of a row], apart."""
        unpacked = self._unpack(self, rows.reshape(len(rows), -1, self.nbytes))
        parts = (unpacked.factors, unpacked.min_factors)
        factors, min_factors = (None if part is None else _flat(part) for part in parts)
        codes = _flat(unpacked.codes).view(np.int8)
        return Codes(codes, unpacked.scales, unpacked.minimums, factors, min_factors)


def dequantize_blocks(kind: BlockType, rows: ndarray) -> ndarray:
    """The numbers of rows of blocks, float32 [rows, inputs], as ggml computes them."""
    unpacked = kind.unpack(rows)
    scales = _by_group(unpacked.scales, unpacked.factors)
    codes = unpacked.codes.reshape(*scales.shape, -1)
    values = (np.array(kind.table)[codes] if kind.table else codes).astype(np.float32)
    values -= kind.zero
    values *= scales[..., None]
    if unpacked.minimums is not None:
        minimums = _by_group(unpacked.minimums, unpacked.min_factors)
        values = values.reshape(*minimums.shape, -1)
        values += minimums[..., None]
    return _flat(values)


def _flat(array: ndarray) -> ndarray:
    """[rows, everything else]."""
    return np.ascontiguousarray(array).reshape(len(array), -1)


def _by_group(of_blocks: ndarray, factors: ndarray | None) -> ndarray:
    """The blocks' float16 numbers times their groups' factors, float32 [rows, groups]."""
    wide = of_blocks.astype(np.float32)
    if factors is None:
        return wide
    return _flat(factors.reshape(*wide.shape, -1).astype(np.float32) * wide[..., None])


_BITS = np.arange(8, dtype=np.uint8)
_TWO_BITS = _BITS[::2]


def _halves(kind: BlockType, blocks: ndarray) -> list[ndarray]:
    """The float16 scale of each block, and its minimum."""
    places = (blocks[..., at : at + 2] for at in kind.halves)
    return [np.ascontiguousarray(place).view(np.float16)[..., 0] for place in places]


def _nibbles(packed: ndarray) -> ndarray:
    """The low halves of some bytes, and then their high halves."""
    return np.concatenate((packed & 15, packed >> 4), -1)


def _nibble_pairs(packed: ndarray) -> ndarray:
    """The low half of each byte, followed by its high half."""
    return np.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1)


def _fifth_bits(blocks: ndarray, at: int) -> ndarray:
    """Bit i of the four bytes at `at`, as bit 4 of code i."""
    spread = blocks[..., at : at + 4, None] >> _BITS
    return (spread & 1).reshape(*blocks.shape[:-1], -1) << 4


def _plain(kind: BlockType, blocks: ndarray) -> Codes:
    """A scale, a minimum where 0 has no code of its own, the fifth bits, and the codes."""
    start = 2 * len(kind.halves)
    codes = blocks[..., start:]
    if kind.bits == 4:
        codes = _nibbles(codes)
    elif kind.bits == 5:
        codes = _nibbles(codes[..., 4:]) | _fifth_bits(blocks, start)
    return Codes(codes, *_halves(kind, blocks))


def _powers(_: BlockType, blocks: ndarray) -> Codes:
    """MXFP4: a power of two, less by one than its exponent as the table's numbers are doubled."""
    scales = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128)
    return Codes(_nibbles(blocks[..., 1:]), scales)


def _pairs_of_32(packed: ndarray) -> ndarray:
    """Codes in the order of ggml's k types: 32 low halves, then the 32 high halves."""
    return _nibbles(packed.reshape(*packed.shape[:-1], 4, 32)).reshape(*packed.shape[:-1], -1)


def _k(kind: BlockType, blocks: ndarray) -> Codes:
    """Q4_K and Q5_K: eight groups with factors of 6 bits; minimums are subtracted there."""
    codes = _pairs_of_32(blocks[..., -128:])
    if kind.bits == 5:
        high = blocks[..., None, 16:48] >> _BITS[:, None]
        codes |= ((high & 1) << 4).reshape(codes.shape)
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    factors = np.concatenate((first & 63, third & 15 | first >> 6 << 4), -1)
    min_factors = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), -1)
    scales, minimums = _halves(kind, blocks)
    return Codes(codes, scales, -minimums, factors, min_factors)


def _iq4_xs(kind: BlockType, blocks: ndarray) -> Codes:
    """Eight groups with signed factors of 6 bits."""
    low, high = _nibble_pairs(blocks[..., 4:8]), blocks[..., 2:4, None] >> _TWO_BITS & 3
    factors = low | high.reshape(low.shape) << 4
    codes = _nibbles(blocks[..., 8:].reshape(*blocks.shape[:-1], 8, 16))
    return Codes(codes, _halves(kind, blocks)[0], factors=(factors - 32).view(np.int8))


def _crumbs(packed: ndarray) -> ndarray:
    """Codes of two bits: the lowest of 32 bytes, then the next; of 64 bytes."""
    halves = packed.reshape(*packed.shape[:-1], 2, 1, 32) >> _TWO_BITS[:, None] & 3
    return halves.reshape(*packed.shape[:-1], -1)


def _q2_k(kind: BlockType, blocks: ndarray) -> Codes:
    """Sixteen groups with factors of 4 bits; minimums are subtracted there."""
    scales, minimums = _halves(kind, blocks)
    factors, min_factors = blocks[..., :16] & 15, blocks[..., :16] >> 4
    return Codes(_crumbs(blocks[..., 16:80]), scales, -minimums, factors, min_factors)


def _q3_k(kind: BlockType, blocks: ndarray) -> Codes:
    """Sixteen groups with signed factors of 6 bits."""
    high = (blocks[..., None, :32] >> _BITS[:, None] & 1).reshape(*blocks.shape[:-1], -1)
    codes = _crumbs(blocks[..., 32:96]) | high << 2
    upper = blocks[..., None, 104:108] >> _TWO_BITS[:, None] & 3
    factors = _nibbles(blocks[..., 96:104]) | upper.reshape(*blocks.shape[:-1], -1) << 4
    return Codes(codes, _halves(kind, blocks)[0], factors=(factors - 32).view(np.int8))


def _q6_k(kind: BlockType, blocks: ndarray) -> Codes:
    """Sixteen groups with signed factors of 8 bits."""
    low = _nibbles(blocks[..., :128].reshape(*blocks.shape[:-1], 2, 64))
    codes = low.reshape(*blocks.shape[:-1], -1) | _crumbs(blocks[..., 128:192]) << 4
    factors = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return Codes(codes, _halves(kind, blocks)[0], factors=factors)


_UNPACKED: dict[str, Callable[[BlockType, ndarray], Codes]] = {
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _k, "Q5_K": _k, "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs, "MXFP4": _powers,
}  # fmt: skip
"""Functions that take blocks apart that are not `_plain`."""
_HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "MXFP4": (),
}  # fmt: skip
"""The places of float16 numbers; all other types have a scale at the start."""
_NORMAL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_TABLES = {"IQ4_NL": _NORMAL, "IQ4_XS": _NORMAL, "MXFP4": _E2M1}


def _layout(name: str, inputs: int, nbytes: int, bits: int, zero: int) -> BlockType:
    table, halves = _TABLES.get(name, ()), _HALVES.get(name, (0,))
    unpack = _UNPACKED.get(name, _plain)
    return BlockType(name, inputs, nbytes, bits, zero, table, halves, unpack)


BLOCK_TYPES = {name: _layout(name, *sizes) for name, sizes in BLOCKS.items()}
"""The types that stay as they are; all others of GGUF files are dequantised."""


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A weight in blocks, as a model gets it."""

    kind: BlockType
    rows: ndarray
    """uint8 [outputs, bytes of a row]."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs, size = self.rows.shape
        return outputs, size // self.kind.nbytes * self.kind.inputs

    def dequantize(self) -> ndarray:
        """Its numbers, float32 [outputs, inputs]."""
        return dequantize_blocks(self.kind, self.rows)
