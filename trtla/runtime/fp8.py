"""FP8 on the torch executor: matrix products of FP8 weights, and where they can run.

Elsewhere weights are dequantised when they are loaded, which trtla.runtime.model does. Knows one
linear layer at a time, nothing of checkpoints' names.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trtla.config import CheckpointConfig
from trtla.e4m3 import quantize

_CAPABILITY = (8, 9)  # Ada, the first with FP8 tensor cores
_MULTIPLE = 16  # what torch._scaled_mm asks of a weight's sizes on CUDA


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """A product in FP8: the input is quantised with a static scale, sums are kept in float32.

    `weight` is FP8 [out, in] as in the checkpoint, the scales are float32 with one element, `bias`
    is [out] in `dtype`, the type of the output.
    """

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor
    bias: Tensor | None
    dtype: torch.dtype

    def __call__(self, states: Tensor) -> Tensor:
        return self.product(quantize(states, self.input_scale))

    def product(self, numbers: Tensor) -> Tensor:
        """The output for an input that is quantised already, FP8 [tokens, in]."""
        out = torch._scaled_mm(
            numbers,
            self.weight.t(),
            scale_a=self.input_scale,
            scale_b=self.weight_scale,
            out_dtype=self.dtype,
        )
        return out if self.bias is None else out + self.bias


@dataclass(frozen=True, slots=True)
class Fp8Pair:
    """Two products of one input. Stacked weights would need one scale, and a second rounding."""

    first: Fp8Linear
    second: Fp8Linear
    same_scale: bool
    """Whether the input, quantised once, serves both."""

    @classmethod
    def of(cls, first: Fp8Linear, second: Fp8Linear) -> Fp8Pair:
        """Two linears that read the same input."""
        return cls(first, second, torch.equal(first.input_scale, second.input_scale))

    def __call__(self, states: Tensor) -> tuple[Tensor, Tensor]:
        numbers = quantize(states, self.first.input_scale)
        second = self.second.product(numbers) if self.same_scale else self.second(states)
        return self.first.product(numbers), second


def fp8_products(config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a model's FP8 weights are multiplied in FP8 here.

    They are on GPUs that can and for sizes that CUDA takes. Not in float32: who asks for it wants
    its precision, and activations rounded to FP8 have none.
    """
    if device.type != "cuda" or dtype == torch.float32:
        return False
    return torch.cuda.get_device_capability(device) >= _CAPABILITY and _sizes_fit(config)


def _sizes_fit(config: CheckpointConfig) -> bool:
    queries = config.num_attention_heads * config.head_size
    keys = config.num_key_value_heads * config.head_size
    sizes = (config.hidden_size, queries, queries + 2 * keys, config.intermediate_size)
    return all(size % _MULTIPLE == 0 for size in sizes)
