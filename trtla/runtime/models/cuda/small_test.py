"""The fused operations against PyTorch's at a model's own sizes: a part of the self-test.

How many numbers and warps a program has depends on the sizes; the kernels compiled here are the
model's own, so none is compiled for the test alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import E4M3
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.cuda.fused import FusedOperations
from trtla.runtime.models.kv_cache import Fp8KVCache, KVCache
from trtla.runtime.models.layers import PlainOperations
from trtla.runtime.models.rotary import Rotary

_FUSED, _PLAIN = FusedOperations(), PlainOperations()
_TOKENS = 3
_SCALE = 0.05
"""Of FP8 numbers, which then reach 22."""
_HALF_STEP, _LEAST_NORMAL = 2.0**-4, 2.0**-6 * _SCALE
"""What rounding to FP8 may change a number by, as a share of it; smaller ones change by as much as
the least normal one."""

Results = Iterator[tuple[Tensor, Tensor]]
"""Numbers of the fused operations, which may be FP8 over `_SCALE`, and PyTorch's unrounded ones."""


@torch.inference_mode()
def largest_difference(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device, products: bool
) -> float:
    """Of all results, as a share of the largest number, beside what FP8 rounds off."""
    case = _Case(config, dtype, device, products)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        results = (*case.norms(), *case.activations(), *case.rotations())
        return torch.stack([_difference(*pair) for pair in results]).max().item()


class _Case:
    def __init__(
        self, config: CheckpointConfig, dtype: torch.dtype, device: torch.device, products: bool
    ) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._generator = torch.Generator().manual_seed(0)
        self._products = products
        self._scale = torch.tensor([_SCALE], device=device) if products else None

    def norms(self) -> Results:
        """The first of a model, a layer's, and the last, which no FP8 product follows."""
        size, epsilon = self._config.hidden_size, self._config.norm_epsilon
        states, delta = self._numbers(_TOKENS, size), self._numbers(_TOKENS, size)
        weight = self._numbers(size)
        for added, scale in ((None, self._scale), (delta, self._scale), (delta, None)):
            found = _FUSED.add_norm(states, added, weight, epsilon, scale)
            yield from zip(found, _PLAIN.add_norm(states, added, weight, epsilon), strict=True)

    def activations(self) -> Results:
        """Of gate and up, stacked where one product makes both; and attention's, rounded."""
        gate, up = self._numbers(_TOKENS, 2 * self._config.intermediate_size).chunk(2, dim=-1)
        if self._products:
            gate, up = gate.contiguous(), up.contiguous()
        yield _FUSED.silu_mul(gate, up, self._scale), _PLAIN.silu_mul(gate, up)
        attended = self._numbers(_TOKENS, self._config.num_attention_heads * self._config.head_size)
        yield _FUSED.rounded(attended, self._scale), attended

    def rotations(self) -> Results:
        config, device = self._config, self._device
        shape = (1, config.num_key_value_heads, config.head_size, 1)
        plain = KVCache(*shape, self._dtype, device)
        fused = KVCache(*shape, self._dtype, device)
        if config.fp8_kv_cache:
            fused = Fp8KVCache(*shape, [_SCALE], device)
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        qkv = self._numbers(_TOKENS, heads * config.head_size)
        slots = torch.tensor([TOKENS_PER_BLOCK - 1, 0, 5], device=device)
        rotary = Rotary(config, self._dtype, device)(slots * 7, None)
        found = _FUSED.rotate_write(qkv, rotary, slots, fused, 0)
        yield found, _PLAIN.rotate_write(qkv, rotary, slots, plain, 0)
        for part, wanted in zip(fused.layer(0), plain.layer(0), strict=True):
            stored = part[slots]
            yield stored.view(E4M3) if config.fp8_kv_cache else stored, wanted[slots]

    def _numbers(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator)
        return drawn.to(self._device, self._dtype)


def _difference(found: Tensor, wanted: Tensor) -> Tensor:
    wanted = wanted.float()
    if found.dtype == E4M3:
        rounding = _HALF_STEP * wanted.abs().clamp(min=_LEAST_NORMAL)
        error = (found.float() * _SCALE - wanted).abs() - rounding
    else:
        error = (found.float() - wanted).abs()
    return error.max() / wanted.abs().max()  # NaN where any is
