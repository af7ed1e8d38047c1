"""Triton kernels of prompt attention over a paged cache, and the parts shared with trees.

`attend_prompts` attends stretches of prompts. A program has a tile of queries of one sequence: all
query heads of one K/V head, token by token.

Scores, sums and outputs are float32. Exponentials have the base 2.
"""

# Triton comes without type hints and is not there on every machine; its constants are capitals.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,misc,no-any-return"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

_ONE = tl.constexpr(16777216.0)  # a weight of 1 as an integer; a block's sum stays below 2**31


@triton.jit
def _summed(weights: tl.tensor) -> tl.tensor:
    """The sum of each row of weights up to 1, as integers, so that no order changes it."""
    return tl.sum((weights * _ONE + 0.5).to(tl.int32), 1).to(tl.float32) / _ONE


@triton.jit
def absorb(
    q: tl.tensor,
    factor: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    places: tl.tensor,
    inside: tl.tensor,
    visible: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    sums: tl.tensor,
) -> tl.tensor:
    """Add a block of keys to an online softmax, and return (peak, total, sums).

    `fused.rotate_write` keeps all values finite. A key that is not finite makes the sums of the
    rows that see it NaN, and changes no other row.
    """
    k = tl.load(keys + places, mask=inside[:, None], other=0.0).to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen nothing yet has -inf, and -inf - -inf would be NaN.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    shrink = tl.exp2((peak - base) * factor)
    less = tl.broadcast_to(-(base * factor)[:, None], scores.shape)
    weights = tl.exp2(tl.fma(scores, tl.full(scores.shape, factor, tl.float32), less))
    v = tl.load(values + places, mask=inside[:, None], other=0.0).to(q.dtype)
    sums = tl.dot(weights.to(q.dtype), v, sums * shrink[:, None], input_precision="ieee")
    return higher, tl.fma(total, shrink, _summed(weights)), sums


@triton.jit
def token_places(
    table: tl.tensor,
    tokens: tl.tensor,
    inside: tl.tensor,
    slot_stride: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
) -> tl.tensor:
    """The offsets of the tokens' keys, [tokens, HEAD_SIZE] in elements."""
    blocks = tl.load(table + tokens // PAGE, mask=inside, other=0)
    slots = blocks.to(tl.int64) * PAGE + tokens % PAGE  # a cache may be larger than 2**31
    return slots[:, None] * slot_stride + tl.arange(0, HEAD_SIZE)[None, :]


@triton.jit
def first_seen(
    positions: tl.tensor,
    nodes: tl.tensor,
    real: tl.tensor,
    cached: tl.tensor,
    window: tl.tensor,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The first position that each node sees, and the number of cached tokens that no node sees."""
    begins, unread = nodes, cached * 0
    if WINDOWED:
        begins = tl.load(positions + nodes, mask=real, other=0) - window + 1
        unread = tl.maximum(cached - window + 1, 0) // BLOCK_N * BLOCK_N
    return begins, unread


# Sizes of a step are no reason to compile again, nor are addresses that no vector is loaded from.
# Strides of queries and slots are the model's: as multiples of 16 they let a thread load 16 bytes.
@triton.jit(
    do_not_specialize=["rows", "sequence_stride", "window"],
    do_not_specialize_on_alignment=["sequences", "positions", "scale"],
)
def attend_prompts(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    sequences: tl.tensor,
    positions: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    factor: tl.tensor,
    query_stride: tl.tensor,
    slot_stride: tl.tensor,
    sequence_stride: tl.tensor,
    window: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SCALED: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> None:
    """Grid (query tiles, K/V heads, sequences); out is [rows, heads, size]."""
    head = tl.program_id(1)
    table = sequences + tl.program_id(2) * sequence_stride
    cached, fed, start = tl.load(table), tl.load(table + 1), tl.load(table + 2)
    table = table + 3
    first = tl.program_id(0) * BLOCK_M
    tile = first + tl.arange(0, BLOCK_M)
    nodes, heads = tile // GROUP_SIZE, head * GROUP_SIZE + tile % GROUP_SIZE
    real, lanes = nodes < fed, tl.arange(0, HEAD_SIZE)
    places = (start + nodes).to(tl.int64) * query_stride + heads * HEAD_SIZE
    q = tl.load(queries + places[:, None] + lanes[None, :], mask=real[:, None], other=0.0)
    keys, values = keys + head * HEAD_SIZE, values + head * HEAD_SIZE
    value_scale = tl.load(scale) if SCALED else 1.0
    begins, at = first_seen(positions + start, nodes, real, cached, window, BLOCK_N, WINDOWED)
    end = cached + tl.minimum(fed, (first + BLOCK_M - 1) // GROUP_SIZE + 1)
    end = tl.where(first < fed * GROUP_SIZE, end, 0)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total, sums = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M, HEAD_SIZE], tl.float32)
    for token in range(at, end, BLOCK_N):
        tokens = token + tl.arange(0, BLOCK_N)
        inside = tokens < end
        visible = inside[None, :] & (tokens[None, :] <= (cached + nodes)[:, None])
        if WINDOWED:
            visible = visible & (tokens[None, :] >= begins[:, None])
        key_places = token_places(table, tokens, inside, slot_stride, HEAD_SIZE, PAGE)
        peak, total, sums = absorb(
            q, factor * value_scale, keys, values, key_places, inside, visible, peak, total, sums
        )
    result = sums * value_scale / tl.where(total == 0.0, 1.0, total)[:, None]
    places = (start + nodes).to(tl.int64) * (KV_HEADS * GROUP_SIZE) + heads
    places = places[:, None] * HEAD_SIZE + lanes[None, :]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=real[:, None])
