"""Weights in the layout of the CPU's forward: panels of outputs, all inputs of a panel in a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.runtime.cpu.library import Matrix

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Numbers of the types in the C structures."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights are laid out for a processor and an arithmetic."""

    lanes: int
    """Numbers of 32 bits in a vector register."""
    paired: bool
    """Two neighbouring inputs lie together: bfloat16 that is multiplied as such."""

    def pack(self, weight: Tensor) -> Tensor:
        """[panels, inputs, 2 x lanes] from [outputs, inputs]; missing outputs are zero."""
        width = 2 * self.lanes
        padded = F.pad(weight, (0, 0, 0, -len(weight) % width)).contiguous()
        units = padded.view(torch.int32) if self.paired else padded
        panels = units.view(-1, width, units.shape[1]).transpose(1, 2).contiguous()
        return panels.view(weight.dtype)

    def interleave(self, first: Tensor, second: Tensor) -> Tensor:
        """Rows of both in turns, `lanes` at a time: a panel then holds the same ones of each."""
        parts = [part.view(-1, self.lanes, *part.shape[1:]) for part in (first, second)]
        return torch.stack(parts, dim=1).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight and its bias, kept alive for the structure that points at them."""

    weight: Tensor
    bias: Tensor | None
    outputs: int
    inputs: int

    @classmethod
    def of(cls, packing: Packing, weight: Tensor, bias: Tensor | None) -> Packed:
        """From [outputs, inputs] and [outputs]."""
        if bias is not None:
            bias = F.pad(bias.float(), (0, -len(bias) % (2 * packing.lanes))).contiguous()
        return cls(packing.pack(weight), bias, *weight.shape)

    @property
    def matrix(self) -> Matrix:
        """What the forward gets."""
        bias = None if self.bias is None else self.bias.data_ptr()
        kind = TYPES[self.weight.dtype]
        return Matrix(self.weight.data_ptr(), bias, self.outputs, self.inputs, kind)
