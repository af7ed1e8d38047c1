"""A trial for scripts/gpu_probe.py: the forward with fused small kernels, weights as [out, in].

A layer launches 9 kernels in place of 18 and more. Correct enough to compare and to time.
"""

# Triton comes without type hints; its constants are capitals.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,misc,no-any-return"
# mypy: disable-error-code="union-attr"
# ruff: noqa: N803

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from trtla.runtime.models.batch import Batch, Forwarded
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.models.llama import LlamaModel


@triton.jit
def _add_norm(
    states: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    epsilon: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < SIZE
    x = tl.load(states + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(states + row * SIZE + at, x.to(states.dtype.element_ty), mask=inside)
        x = x.to(states.dtype.element_ty).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + epsilon)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + at, (x * scale * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rope_write(
    qkv: tl.tensor,
    out: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    inverse: tl.tensor,
    row_stride: tl.tensor,
    slot_stride: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    token, head, lanes = tl.program_id(0), tl.program_id(1), tl.arange(0, HALF)
    base = qkv + token.to(tl.int64) * row_stride + head * HALF * 2
    first, second = tl.load(base + lanes), tl.load(base + HALF + lanes)
    slot = tl.load(slots + token) * slot_stride
    if head >= HEADS + KV_HEADS:
        place = values + slot + (head - HEADS - KV_HEADS) * HALF * 2
        tl.store(place + lanes, first)
        tl.store(place + HALF + lanes, second)
    else:
        angle = tl.load(positions + token).to(tl.float32) * tl.load(inverse + lanes)
        cos, sin = tl.cos(angle), tl.sin(angle)
        a, b = first.to(tl.float32), second.to(tl.float32)
        x, y = (a * cos - b * sin).to(first.dtype), (b * cos + a * sin).to(first.dtype)
        if head >= HEADS:
            place = keys + slot + (head - HEADS) * HALF * 2
            tl.store(place + lanes, x)
            tl.store(place + HALF + lanes, y)
        else:
            place = out + (token * HEADS + head) * HALF * 2
            tl.store(place + lanes, x)
            tl.store(place + HALF + lanes, y)


@triton.jit
def _silu_mul(both: tl.tensor, out: tl.tensor, SIZE: tl.tensor, BLOCK: tl.constexpr) -> None:
    row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    gate = tl.load(both + row * 2 * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * SIZE + SIZE + at, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + at, result.to(out.dtype.element_ty), mask=inside)


class Fused:
    """A model's forward over pages, with the kernels above."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._layers = [
            (
                layer.input_norm,
                _out_in(layer.qkv),
                _out_in(layer.dense),
                layer.post_norm,
                _out_in(layer.gate_up.stacked),
                _out_in(layer.down),
            )
            for layer in model._layers
        ]
        self._head = _out_in(model._lm_head)

    @torch.inference_mode()
    def forward_batch(self, batch: Batch, cache: KVCache) -> Forwarded:
        """As LlamaModel.forward_batch."""
        states, delta = F.embedding(batch.tokens, self._model._embedding), None
        for index, (norm, qkv, dense, post_norm, gate_up, down) in enumerate(self._layers):
            normed = self._norm(states, delta, norm)
            attended = self._attend(F.linear(normed, qkv), batch, cache, index)
            normed = self._norm(states, F.linear(attended, dense), post_norm)
            delta = F.linear(_silu(F.linear(normed, gate_up)), down)
        assert delta is not None
        rows = batch.rows
        last = states.index_select(0, rows), delta.index_select(0, rows)
        return Forwarded(self._logits(self._norm(*last, self._model._norm)))

    def _attend(self, qkv: Tensor, batch: Batch, cache: KVCache, index: int) -> Tensor:
        heads, kv_heads = self._model._heads
        keys, values = cache.layer(index)
        size, tokens = keys.shape[-1], len(qkv)
        q = qkv.new_empty(tokens, heads, size)
        _rope_write[(tokens, heads + 2 * kv_heads)](
            qkv, q, keys, values, batch.slots, batch.positions, self._model._rotary._frequencies,
            qkv.stride(0), keys.stride(0), HEADS=heads, KV_HEADS=kv_heads, HALF=size // 2,
            num_warps=1,
        )  # fmt: skip
        scale = cache.scale(index)
        parts = [group.attend(q[group.rows], keys, values, scale) for group in batch.groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _norm(self, states: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        out, size, add = torch.empty_like(states), states.shape[1], delta is not None
        _add_norm[(len(states),)](
            states, delta if add else states, weight, out, self._model.config.norm_epsilon,
            SIZE=size, BLOCK=triton.next_power_of_2(size), ADD=add, num_warps=8,
        )  # fmt: skip
        return out

    def _logits(self, states: Tensor) -> Tensor:
        if states.dtype == torch.float32:
            return F.linear(states, self._head)
        try:
            return torch.mm(states, self._head.t(), out_dtype=torch.float32)
        except TypeError:  # an older PyTorch
            return F.linear(states, self._head).float()


def _silu(both: Tensor) -> Tensor:
    inner = both.shape[1] // 2
    out = both.new_empty(len(both), inner)
    _silu_mul[(len(both), triton.cdiv(inner, 1024))](both, out, inner, BLOCK=1024, num_warps=4)
    return out


def _out_in(linear: object) -> Tensor:
    """A weight as [out, in]: of CUDA's layout, or unpacked from oneDNN's."""
    transposed = getattr(linear, "transposed", None)
    if transposed is not None:
        return transposed.t().contiguous()
    return linear.packed.to_dense()  # type: ignore[attr-defined]
