"""A model's layers: matrix products with plain and FP8 weights, rotary embedding, and the small
operations between products.

On CPUs a weight is kept in oneDNN's own block layout, made once at load; on CUDA as it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.formats.torch_tensors import E4M3, quantize
from trtla.runtime.models.rotary import exponents, frequencies, magnitude, magnitudes
from trtla.runtime.models.tensor_cache import TensorCache

_STEP_TOKENS = 16
"""The count of tokens that oneDNN expects: a layout for one token is slow for all other counts."""

_FEW_TOKENS = 4
"""Fewer tokens are padded for large weights, which oneDNN streams from memory faster for four."""

_LARGE_ELEMENTS = 2**21
"""Numbers of a large weight, which comes from memory; for smaller ones calls cost more."""

_WIDENING = hasattr(torch.ops.aten.mm, "dtype")
"""`torch.mm` takes an `out_dtype`, as it does on CUDA from PyTorch 2.8 on."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight with an optional bias [out]; at least one layout of the weight is there."""

    packed: Tensor | None
    """oneDNN's layout, for any number of tokens."""
    transposed: Tensor | None
    """[in, out]: where oneDNN cannot be used, and for single tokens where that is faster; on CUDA a
    view of the checkpoint's [out, in], which cuBLAS multiplies as well."""
    bias: Tensor | None = None

    input_scale: ClassVar[None] = None
    """The input is not quantised, as that of `Fp8Linear` is."""

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None, *, shared: bool = False) -> Linear:
        """Make one from a checkpoint's weight [out, in].

        Args:
            shared: something else reads it too, so it is not copied where that can be avoided.
        """
        if not _can_pack(weight):
            is_view = shared or weight.device.type == "cuda"
            return cls(None, weight.t() if is_view else weight.t().contiguous(), bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _STEP_TOKENS)
        twice = weight.dtype == torch.float32 and weight.numel() < _LARGE_ELEMENTS
        return cls(packed, weight.t().contiguous() if twice else None, bias)

    def __call__(self, states: Tensor) -> Tensor:
        if self.packed is None or (self.transposed is not None and len(states) == 1):
            assert self.transposed is not None
            if self.bias is None:
                return states @ self.transposed
            return torch.addmm(self.bias, states, self.transposed)
        if 0 < len(states) < _FEW_TOKENS and self.packed.numel() >= _LARGE_ELEMENTS:
            padded = F.pad(states, (0, 0, 0, _FEW_TOKENS - len(states)))
            return _packed_product(padded, self.packed, self.bias)[: len(states)]
        return _packed_product(states, self.packed, self.bias)

    def wide(self, states: Tensor) -> Tensor:
        """The product in float32; on CUDA, without a bias, never rounded to less."""
        half = states.is_cuda and states.dtype in (torch.float16, torch.bfloat16)
        if half and self.widens and self.transposed is not None:
            return torch.mm(states, self.transposed, out_dtype=torch.float32)
        return self(states).float()

    @property
    def widens(self) -> bool:
        """Return True if `wide` rounds nothing on CUDA, and makes no smaller copy before."""
        return _WIDENING and self.bias is None


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _packed_product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(states, weight, bias, "none", [], "")
    return out


@dataclass(frozen=True, slots=True)
class LinearPair:
    """Two projections of the same input as one: their weights stacked."""

    stacked: Linear

    input_scale: ClassVar[None] = None

    @classmethod
    def of(cls, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> LinearPair:
        """Make a pair of two weights [out, in] of the same sizes and their biases, both or none."""
        present = [bias for bias in biases if bias is not None]
        return cls(Linear.of(torch.cat(tuple(weights)), torch.cat(present) if present else None))

    def __call__(self, states: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.stacked(states).chunk(2, dim=-1)
        return first, second


_CAPABILITY = (8, 9)  # Ada, the first with FP8 tensor cores
_MULTIPLE = 16  # that torch._scaled_mm needs of a weight's sizes on CUDA


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
        """The product for states [tokens, in], which may be quantised with the scale already."""
        out = torch._scaled_mm(
            states if states.dtype == E4M3 else quantize(states, self.input_scale),
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
    """The input, quantised once, serves both."""

    @classmethod
    def of(cls, first: Fp8Linear, second: Fp8Linear) -> Fp8Pair:
        return cls(first, second, torch.equal(first.input_scale, second.input_scale))

    @property
    def input_scale(self) -> Tensor | None:
        """The scale that the input may be quantised with before; None: each product has its own."""
        return self.first.input_scale if self.same_scale else None

    def __call__(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Both products; states may be quantised with `input_scale` already."""
        if self.same_scale and states.dtype != E4M3:
            states = quantize(states, self.first.input_scale)
        return self.first(states), self.second(states)


def fp8_products(config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if a model's FP8 weights are multiplied in FP8 here.

    They are on GPUs that can and for sizes that CUDA takes. Not in float32, whose precision is lost
    in activations rounded to FP8.
    """
    if device.type != "cuda" or dtype == torch.float32:
        return False
    queries = config.num_attention_heads * config.head_size
    keys = config.num_key_value_heads * config.head_size
    sizes = (config.hidden_size, queries, queries + 2 * keys, config.intermediate_size)
    fits = all(size % _MULTIPLE == 0 for size in sizes)
    return fits and torch.cuda.get_device_capability(device) >= _CAPABILITY


class Rotary:
    """Cosines and sines for packed tokens, in the half-rotation layout of Hugging Face's Llama."""

    def __init__(self, config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype = config, dtype
        self._magnitude = torch.from_numpy(magnitudes(config)).to(device)
        self._scales = magnitude(config) != 1.0
        self._dynamic = config.rope_type == "dynamic"
        self._frequencies = torch.from_numpy(frequencies(config)).to(device)
        self._exponents = torch.from_numpy(exponents(config.head_size)).to(device)

    def __call__(self, positions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosine and sine [tokens, 1, head_size / 2].

        Args:
            positions: absolute position of each token, int64 [tokens].
            lengths: length of the text when the token was first seen (its prompt's, else position +
                1), int64 [tokens]; only dynamic scaling depends on it. None: none is longer than
                the trained length.
        """
        inverse = self._frequencies
        if self._dynamic and lengths is not None:
            inverse = self._dynamic_frequencies(lengths)
        angles = positions[:, None].float() * inverse
        cosine, sine = angles.cos(), angles.sin()
        if self._scales:
            cosine, sine = cosine * self._magnitude, sine * self._magnitude
        return cosine.to(self._dtype)[:, None], sine.to(self._dtype)[:, None]

    def _dynamic_frequencies(self, lengths: Tensor) -> Tensor:
        """NTK frequencies, a row per token: the base grows beyond the trained length."""
        config = self._config
        limit, size = config.max_position_embeddings, config.head_size
        factor = float((config.rotary_scaling or {})["factor"])
        growth = factor * lengths.clamp(min=limit).float() / limit - (factor - 1)
        base = config.rotary_base * growth ** (size / (size - 2))
        return 1.0 / base[:, None] ** self._exponents


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply the rotation to [tokens, heads, head_size]."""
    halves = states.view(*states.shape[:-1], 2, -1)
    rotated = (halves * cosine.unsqueeze(-2)).flatten(-2)
    first, second = states.chunk(2, dim=-1)
    rotated_first, rotated_second = rotated.chunk(2, dim=-1)
    rotated_first.addcmul_(second, sine, value=-1)
    rotated_second.addcmul_(first, sine)
    return rotated


class PlainOperations:
    """The operations of a layer between its matrix products and its attention, in PyTorch.

    A `scale` is that of an FP8 product that follows: the result may then be quantised with it.
    """

    def add_norm(
        self,
        states: Tensor,
        delta: Tensor | None,
        weight: Tensor,
        epsilon: float,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The sum of states and delta [tokens, hidden] (None: nothing), and its RMS norm."""
        total = states if delta is None else states + delta
        return total, F.rms_norm(total, weight.shape, weight, epsilon)

    def rotate_write(
        self,
        qkv: Tensor,
        rotary: tuple[Tensor, Tensor],
        slots: Tensor,
        cache: TensorCache,
        layer: int,
    ) -> Tensor:
        """Rotate queries and keys of qkv [tokens, (heads + 2 kv_heads) * head_size], write keys and
        values to a layer's slots; the queries, [tokens, heads, head_size]."""
        kv_heads, size = cache.layer(layer)[0].shape[1:]
        heads = qkv.view(len(qkv), -1, size)
        rotated = rotate(heads[:, :-kv_heads], *rotary)
        cache.write(layer, slots, rotated[:, -kv_heads:], heads[:, -kv_heads:])
        return rotated[:, :-kv_heads]

    def silu_mul(self, gate: Tensor, up: Tensor, scale: Tensor | None = None) -> Tensor:
        """silu(gate) * up, each [tokens, size], their rows equally far apart."""
        return F.silu(gate) * up

    def rounded(self, states: Tensor, scale: Tensor | None) -> Tensor:
        """The states [tokens, size] themselves, or quantised."""
        return states

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu(gate) * up, by the tanh form."""
        return F.gelu(gate, approximate="tanh") * up

    def clamped_mul(self, gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
        """silu(gate) * (up + 1), both limited, with a factor in the sigmoid."""
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(gate * alpha) * (up + 1)

    def move(self, cache: TensorCache, moves: Tensor) -> None:
        """Copy keys and values of all layers from slots to slots, int64 [2, moves]."""
        cache.move(*moves)
