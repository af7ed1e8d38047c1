"""The small operations of a Llama layer as Triton kernels: four launches in place of thirteen.

Each rounds where the unfused operations, `layers.PlainOperations`, round: sums, norms, rotated and
activated numbers are rounded to the model's type first, and to FP8 second. The input of an FP8
product is rounded in the same launch; the output of attention needs a separate one. Sizes of the
model are constants and the number of tokens is the grid's, so another step compiles nothing.
This file imports Triton: import it only where a model runs on a GPU.
"""

# Triton comes without type hints and is not there on every machine; its constants are capitals.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,misc,no-any-return"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trtla.formats.torch_tensors import E4M3
from trtla.runtime.models.layers import PlainOperations
from trtla.runtime.models.tensor_cache import TensorCache

_LANE = 8  # numbers of a thread: 16 bytes of a half type
_BLOCK = 1024
_MOVED = 2048  # numbers that a program moves


@triton.jit
def _fp8_bytes(values: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """Return the e4m3 bytes of `quantize`: nearest, ties to even, at most 448 in size; NaN stays.

    Integer arithmetic makes them the same on every GPU and under the interpreter, whose own
    rounding is wrong.
    """
    scaled = tl.div_rn(values, scale)
    size = tl.abs(scaled)
    bits = size.to(tl.uint32, bitcast=True)
    odd = (bits >> 20) & 1
    normal = (bits + 0x7FFFF + odd - (120 << 23)) >> 20  # the bias of 127 becomes one of 7
    # Adding 2**14 leaves what a float32 can hold there, multiples of 2**-9: subnormal numbers.
    subnormal = (size + 16384.0).to(tl.uint32, bitcast=True) - (141 << 23)
    code = tl.where(size < 0.015625, subnormal, normal)
    code = tl.where(size < 448.0, code, tl.where(size == size, 0x7E, 0x7F))
    sign = (scaled.to(tl.uint32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)


@triton.jit
def _store(
    places: tl.tensor, values: tl.tensor, scale: tl.tensor, inside: tl.tensor, FP8: tl.constexpr
) -> None:
    """Store numbers in the model's type or in FP8."""
    if FP8:
        values = _fp8_bytes(values.to(tl.float32), tl.load(scale))
    tl.store(places, values, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["scale"])
def add_norm(
    states: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    normed: tl.tensor,
    scale: tl.tensor,
    epsilon: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    FP8: tl.constexpr,
) -> None:
    """Compute total = states + delta (with ADD) and its RMS norm, one token per program."""
    row, at = tl.program_id(0).to(tl.int64) * SIZE, tl.arange(0, BLOCK)
    inside = at < SIZE
    x = tl.load(states + row + at, mask=inside, other=0.0)
    if ADD:
        added = tl.load(delta + row + at, mask=inside, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) + added).to(x.dtype)
        tl.store(total + row + at, x, mask=inside)
    wide = x.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + epsilon)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    _store(normed + row + at, (wide * factor * weights).to(x.dtype), scale, inside, FP8)


@triton.jit
def _rotated(
    places: tl.tensor, cosine: tl.tensor, sine: tl.tensor, inside: tl.tensor, HALF: tl.constexpr
) -> tl.tensor:
    """Return both halves of rotated heads; products with the cosine are rounded, as in `rotate`."""
    first = tl.load(places, mask=inside, other=0.0)
    second = tl.load(places + HALF, mask=inside, other=0.0)
    a, b = first.to(tl.float32), second.to(tl.float32)
    left = (a * cosine).to(first.dtype).to(tl.float32) - b * sine
    right = (b * cosine).to(first.dtype).to(tl.float32) + a * sine
    return left.to(first.dtype), right.to(first.dtype)


@triton.jit
def _all_finite(first: tl.tensor, second: tl.tensor, FP8: tl.constexpr) -> tl.tensor:
    """Return True if both halves of a head are finite as stored; FP8 has no infinity."""
    size = tl.maximum(tl.abs(first.to(tl.float32)), tl.abs(second.to(tl.float32)))
    ordered = (first == first) & (second == second)  # the larger of a number and NaN is the number
    finite = ordered if FP8 else ordered & (size < float("inf"))
    return tl.min(finite.to(tl.int32), 0) != 0


@triton.jit(do_not_specialize_on_alignment=["slots", "scale"])
def rotate_write(
    qkv: tl.tensor,
    cosines: tl.tensor,
    sines: tl.tensor,
    slots: tl.tensor,
    scale: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    FP8: tl.constexpr,
) -> None:
    """Rotate a token's K/V head and its queries, and write them; grid (tokens, K/V heads).

    Keys and values are written to the token's cache slot, queries to [tokens, heads, 2 * HALF].
    Values that are not finite become zeros, and their key NaN: attention masks the scores of
    unseen keys but multiplies all values, and 0 times NaN is NaN.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes = tl.arange(0, HALF_BLOCK)
    inside = lanes < HALF
    cosine = tl.load(cosines + token * HALF + lanes, mask=inside, other=0.0).to(tl.float32)
    sine = tl.load(sines + token * HALF + lanes, mask=inside, other=0.0).to(tl.float32)

    heads = KV_HEADS * GROUP_SIZE
    row = qkv + token * (heads + 2 * KV_HEADS) * (2 * HALF)
    member = tl.arange(0, GROUP_BLOCK)[:, None]
    there = (member < GROUP_SIZE) & inside[None, :]
    places = (head * GROUP_SIZE + member) * (2 * HALF) + lanes[None, :]
    left, right = _rotated(row + places, cosine[None, :], sine[None, :], there, HALF)
    out = queries + token * heads * (2 * HALF) + places
    tl.store(out, left, mask=there)
    tl.store(out + HALF, right, mask=there)

    key = row + (heads + head) * (2 * HALF) + lanes
    slot = (tl.load(slots + token) * KV_HEADS + head) * (2 * HALF) + lanes
    left, right = _rotated(key, cosine, sine, inside, HALF)
    value = key + KV_HEADS * (2 * HALF)
    first = tl.load(value, mask=inside, other=0.0)
    second = tl.load(value + HALF, mask=inside, other=0.0)
    finite = _all_finite(first, second, FP8)
    _store(keys + slot, tl.where(finite, left, float("nan")), scale, inside, FP8)
    _store(keys + slot + HALF, tl.where(finite, right, float("nan")), scale, inside, FP8)
    _store(values + slot, tl.where(finite, first, 0.0), scale, inside, FP8)
    _store(values + slot + HALF, tl.where(finite, second, 0.0), scale, inside, FP8)


@triton.jit(do_not_specialize_on_alignment=["scale"])
def silu_mul(
    gate: tl.tensor,
    up: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    FP8: tl.constexpr,
) -> None:
    """Compute silu(gate) * up, rows STRIDE apart; grid (tokens, blocks of SIZE)."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    x = tl.load(gate + row * STRIDE + at, mask=inside, other=0.0)
    wide = x.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(x.dtype).to(tl.float32)
    y = tl.load(up + row * STRIDE + at, mask=inside, other=0.0).to(tl.float32)
    _store(out + row * SIZE + at, (active * y).to(x.dtype), scale, inside, FP8)


@triton.jit(do_not_specialize_on_alignment=["scale"])
def round_fp8(
    numbers: tl.tensor, out: tl.tensor, scale: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Round numbers to FP8 bytes; grid (tokens, blocks of SIZE)."""
    row, at = tl.program_id(0).to(tl.int64) * SIZE, tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    _store(out + row + at, tl.load(numbers + row + at, mask=inside, other=0.0), scale, inside, True)


@triton.jit(do_not_specialize=["part_size"])
def move_rows(
    data: tl.tensor,
    moves: tl.tensor,
    part_size: tl.tensor,
    count: tl.tensor,
    ROW: tl.constexpr,
    MOVES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Move rows of a layer's keys or values to other slots; grid (parts, blocks of ROW).

    All rows are read before any is written, because a target may also be a source. A padding move
    has its source as target and costs nothing.
    """
    part = data + tl.program_id(0).to(tl.int64) * part_size
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    move = tl.arange(0, MOVES)
    there = move < count
    source = tl.load(moves + move, mask=there, other=0)
    target = tl.load(moves + count + move, mask=there, other=0)
    moved = (source != target)[:, None] & (at < ROW)
    rows = tl.load(part + source[:, None] * ROW + at, mask=moved, other=0)
    tl.debug_barrier()
    tl.store(part + target[:, None] * ROW + at, rows, mask=moved)


class FusedOperations(PlainOperations):
    """The plain operations with one kernel launch each, on the current CUDA device."""

    def add_norm(
        self,
        states: Tensor,
        delta: Tensor | None,
        weight: Tensor,
        epsilon: float,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        tokens, size = states.shape
        total = states if delta is None else torch.empty_like(states)
        normed = _output(states, scale)
        block = _power(size)
        add_norm[(tokens,)](
            states,
            states if delta is None else delta,
            weight,
            total,
            normed,
            weight if scale is None else scale,
            epsilon,
            SIZE=size,
            BLOCK=block,
            ADD=delta is not None,
            FP8=scale is not None,
            num_warps=_warps(block, 16),
        )
        return total, _typed(normed, scale)

    def rotate_write(
        self,
        qkv: Tensor,
        rotary: tuple[Tensor, Tensor],
        slots: Tensor,
        cache: TensorCache,
        layer: int,
    ) -> Tensor:
        (keys, values), scale = cache.layer(layer), cache.scale(layer)
        kv_heads, size = keys.shape[1:]
        heads = qkv.shape[1] // size - 2 * kv_heads
        queries = qkv.new_empty(len(qkv), heads, size)
        group, half = _power(heads // kv_heads), _power(size // 2)
        rotate_write[(len(qkv), kv_heads)](
            qkv,
            *rotary,
            slots,
            qkv if scale is None else scale,
            queries,
            keys,
            values,
            KV_HEADS=kv_heads,
            GROUP_SIZE=heads // kv_heads,
            HALF=size // 2,
            GROUP_BLOCK=group,
            HALF_BLOCK=half,
            FP8=scale is not None,
            num_warps=_warps(group * half, 4),
        )
        return queries

    def silu_mul(self, gate: Tensor, up: Tensor, scale: Tensor | None = None) -> Tensor:
        tokens, size = gate.shape
        out = _output(gate, scale)
        silu_mul[(tokens, -(-size // _BLOCK))](
            gate,
            up,
            out,
            gate if scale is None else scale,
            SIZE=size,
            STRIDE=gate.stride(0),
            BLOCK=_BLOCK,
            FP8=scale is not None,
            num_warps=4,
        )
        return _typed(out, scale)

    def rounded(self, states: Tensor, scale: Tensor | None) -> Tensor:
        if scale is None:
            return states
        tokens, size = states.shape
        out = _output(states, scale)
        grid = (tokens, -(-size // _BLOCK))
        round_fp8[grid](states, out, scale, SIZE=size, BLOCK=_BLOCK, num_warps=4)
        return out.view(E4M3)

    def move(self, cache: TensorCache, moves: Tensor) -> None:
        layers, both, slots = cache.data.shape[:3]
        row = cache.data[0, 0, 0].numel()
        rows = _power(moves.shape[1])
        block = min(_power(row), max(_LANE, _MOVED // rows))
        move_rows[(layers * both, -(-row // block))](
            cache.data,
            moves,
            slots * row,
            moves.shape[1],
            ROW=row,
            MOVES=rows,
            BLOCK=block,
            num_warps=_warps(rows * block, 8),
        )


def _output(like: Tensor, scale: Tensor | None) -> Tensor:
    return like.new_empty(like.shape, dtype=like.dtype if scale is None else torch.uint8)


def _typed(numbers: Tensor, scale: Tensor | None) -> Tensor:
    return numbers if scale is None else numbers.view(E4M3)


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _warps(numbers: int, most: int) -> int:
    """Return the warps of a program over `numbers`, a power of 2."""
    return max(1, min(most, numbers // (32 * _LANE)))
