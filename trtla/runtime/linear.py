"""Matrix products with a weight, kept in the layout that its device multiplies fastest.

On CPUs that is oneDNN's own block layout, made once at load. Knows one weight at a time, nothing of
layers or checkpoints' names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_STEP_TOKENS = 16
"""Tokens that oneDNN is told to expect: a layout for one token is slow for all other counts."""

_FEW_TOKENS = 4
"""Fewer tokens are padded for large weights, which oneDNN streams from memory faster for four."""

_LARGE_ELEMENTS = 2**21
"""Large weights come from memory; smaller ones lie in the processor's cache, calls cost there."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight with an optional bias [out]; at least one layout of the weight is there."""

    packed: Tensor | None
    """oneDNN's layout, for any number of tokens."""
    transposed: Tensor | None
    """[in, out]: where oneDNN cannot be used, and for single tokens where that is faster."""
    bias: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """From a checkpoint's weight [out, in]."""
        if not _can_pack(weight):
            return cls(None, weight.t().contiguous(), bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _STEP_TOKENS)
        twice = weight.dtype == torch.float32 and weight.numel() < _LARGE_ELEMENTS
        return cls(packed, weight.t().contiguous() if twice else None, bias)

    def __call__(self, states: Tensor) -> Tensor:
        """The product for states [tokens, in]: [tokens, out]."""
        if self.packed is None or (self.transposed is not None and len(states) == 1):
            assert self.transposed is not None
            return _product(states, self.transposed, self.bias)
        if 0 < len(states) < _FEW_TOKENS and self.packed.numel() >= _LARGE_ELEMENTS:
            padded = F.pad(states, (0, 0, 0, _FEW_TOKENS - len(states)))
            return _packed_product(padded, self.packed, self.bias)[: len(states)]
        return _packed_product(states, self.packed, self.bias)


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return states @ weight if bias is None else torch.addmm(bias, states, weight)


def _packed_product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(states, weight, bias, "none", [], "")
    return out


@dataclass(frozen=True, slots=True)
class LinearPair:
    """Two projections of the same input as one: their weights stacked."""

    stacked: Linear

    @classmethod
    def of(cls, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> LinearPair:
        """From two weights [out, in] of the same sizes and their biases, both or none."""
        present = [bias for bias in biases if bias is not None]
        return cls(Linear.of(torch.cat(tuple(weights)), torch.cat(present) if present else None))

    def __call__(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Both products, each [tokens, out]."""
        first, second = self.stacked(states).chunk(2, dim=-1)
        return first, second
