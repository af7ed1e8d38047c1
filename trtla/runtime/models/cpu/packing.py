"""How weights lie in memory for the compiled forward: panels of outputs, read from start to end.

`native/matmul.h` has the layout of plain weights, `native/blocks.h` that of weights in blocks. Both
are repacked without loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.formats.blocks import BlockTensor, BlockType
from trtla.formats.tensors import Weight
from trtla.runtime.models.cpu.library import Matrix

_PAIRS = "bfloat16 pairs"
_TYPES = (
    *("float32", "float16", "bfloat16", _PAIRS),
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"),
)
"""In the order of `Type` in native/operands.h."""
_BLOCK = 32  # inputs of a block in a panel
_FOURS = _BLOCK // 4
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight and its bias, kept alive for the structure that points at them."""

    weight: Tensor
    bias: Tensor | None
    outputs: int
    inputs: int
    type: str
    """One of `_TYPES`."""
    stored: str
    """The type of the weight in the checkpoint."""

    @property
    def in_blocks(self) -> bool:
        """Whether it is multiplied in integers."""
        return _TYPES.index(self.type) > _TYPES.index(_PAIRS)

    @property
    def matrix(self) -> Matrix:
        bias = None if self.bias is None else self.bias.data_ptr()
        kind = _TYPES.index(self.type)
        return Matrix(self.weight.data_ptr(), bias, self.outputs, self.inputs, kind)


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights are laid out for a processor and an arithmetic."""

    lanes: int
    """Numbers of 32 bits in a vector register."""
    paired: bool
    """Plain weights are bfloat16 and multiplied as such: two neighbouring inputs lie together."""

    def pack(self, weight: Weight, bias: Tensor | None = None) -> Packed:
        """From [outputs, inputs] and [outputs]."""
        width = 2 * self.lanes
        if bias is not None:
            bias = F.pad(bias.float(), (0, -len(bias) % width)).contiguous()
        if isinstance(weight, BlockTensor):
            kind = weight.kind.name.split("_G")[0]
            name = kind if kind in _TYPES else f"{kind}_0"  # larger groups: their scale repeated
            return Packed(self._pack_blocks(weight), bias, *weight.shape, name, weight.kind.name)
        dtype, (outputs, inputs) = str(weight.dtype).removeprefix("torch."), weight.shape
        kind = _PAIRS if self.paired else dtype
        return Packed(self._pack_plain(weight), bias, outputs, inputs, kind, dtype)

    def interleave(self, first: Weight, second: Weight) -> Weight:
        """Rows of both alternately, `lanes` at a time: a panel holds the same ones of each."""
        if isinstance(first, BlockTensor) and isinstance(second, BlockTensor):
            return BlockTensor(first.kind, self._interleaved(first.rows, second.rows))
        assert isinstance(first, Tensor)
        assert isinstance(second, Tensor)
        return self._interleaved(first, second)

    def _interleaved(self, *parts: Tensor) -> Tensor:
        each = [part.view(-1, self.lanes, *part.shape[1:]) for part in parts]
        return torch.stack(each, dim=1).flatten(0, 2)

    def _pack_plain(self, weight: Tensor) -> Tensor:
        """[panels, inputs, 2 x lanes]; missing outputs are zero."""
        width = 2 * self.lanes
        padded = F.pad(weight, (0, 0, 0, -len(weight) % width)).contiguous()
        units = padded.view(torch.int32) if self.paired else padded
        panels = units.view(-1, width, units.shape[1]).transpose(1, 2).contiguous()
        return panels.view(weight.dtype)

    def _pack_blocks(self, weight: BlockTensor) -> Tensor:
        """uint8 [panels, bytes of a panel], some panels at a time; missing outputs are zero."""
        pieces = torch.split(weight.rows, _ROWS_AT_ONCE)  # a multiple of a panel's outputs
        return torch.cat([self._panels(weight.kind, piece) for piece in pieces])

    def _panels(self, kind: BlockType, rows: Tensor) -> Tensor:
        found = kind.unpack(F.pad(rows, (0, 0, 0, -len(rows) % (2 * self.lanes))))
        codes = self._packed_codes(found.codes.view(torch.uint8), kind.bits)
        halves = self._side_by_side(found.scales, found.minimums)
        if found.factors is None:
            parts = [half.repeat_interleave(kind.inputs // _BLOCK, 1) for half in halves]
            return torch.cat((*parts, codes), 2).flatten(1)
        factors = self._side_by_side(found.factors, found.min_factors)
        parts = [part.reshape(*codes.shape[:2], -1) for part in (*factors, codes)]
        blocks = torch.cat(parts, 2)
        return torch.cat((*halves, blocks.view(*halves[0].shape[:2], -1)), 2).flatten(1)

    def _side_by_side(self, *parts: Tensor | None) -> list[Tensor]:
        """A panel's outputs together: bytes [panels, columns, outputs] of those that are there."""
        panels = (p.view(-1, 2 * self.lanes, p.shape[1]) for p in parts if p is not None)
        return [panel.transpose(1, 2).contiguous().view(torch.uint8) for panel in panels]

    def _packed_codes(self, codes: Tensor, bits: int) -> Tensor:
        """[panels, blocks, bytes of codes] from uint8 [outputs, inputs]: see `Blocks::unpacked`."""
        fours = codes.view(-1, 2, self.lanes, codes.shape[1] // _BLOCK, _FOURS, 4)
        ordered = fours.permute(0, 3, 4, 1, 2, 5)  # [panels, blocks, fours, halves, lanes, 4]
        if bits == 8:
            return ordered.flatten(2)
        low, high = ordered & 15, ordered >> 4
        packed = [low[:, :, ::2] | low[:, :, 1::2] << 4]
        more = bits - 4
        for first in range(0, _FOURS if more else 0, 8 // max(more, 1)):
            plane = torch.zeros_like(high[:, :, :1])
            for place in range(8 // more):
                plane |= high[:, :, first + place, None] << more * place
            packed.append(plane)
        return torch.cat(packed, 2).flatten(2)
