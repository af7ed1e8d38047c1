"""Triton kernels: attention of packed tree tokens over a paged cache, split along the context.

A program owns a tile of queries (all query heads of one K/V head, token by token), one sequence and
one stretch of its context. Scores, sums and outputs are float32; powers are of two, not of e.
"""

# Triton comes without type hints and is not there on every machine; its constants are capitals.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,misc,no-any-return"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _absorb(
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
    """Online softmax: take in a block of keys, and return (peak, total, sums).

    All values are finite, as `fused.rotate_write` leaves them. A key that is not makes the total of
    a row that sees it NaN, and does nothing to others.
    """
    k = tl.load(keys + places, mask=inside[:, None], other=0.0).to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen nothing yet has -inf, and -inf - -inf would be NaN.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    v = tl.load(values + places, mask=inside[:, None], other=0.0).to(q.dtype)
    sums = sums * shrink[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")
    return higher, total * shrink + tl.sum(weights, 1), sums


@triton.jit
def _places(
    table: tl.tensor,
    tokens: tl.tensor,
    inside: tl.tensor,
    slot_stride: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
) -> tl.tensor:
    """Where the tokens' keys lie, [tokens, HEAD_SIZE] in elements."""
    blocks = tl.load(table + tokens // PAGE, mask=inside, other=0)
    slots = blocks.to(tl.int64) * PAGE + tokens % PAGE  # a cache may be larger than 2**31
    return slots[:, None] * slot_stride + tl.arange(0, HEAD_SIZE)[None, :]


@triton.jit
def _visible(
    masks: tl.tensor,
    queries: tl.tensor,
    nodes: tl.tensor,
    fed: tl.tensor,
    word: tl.tensor,
    words: tl.tensor,
    CAUSAL: tl.constexpr,
) -> tl.tensor:
    """Which fed tokens a query sees: by its bits, or by their order. One word holds a block's."""
    if CAUSAL:
        seen = nodes[None, :] <= queries[:, None]
    else:
        bits = tl.load(masks + queries * words + word, mask=queries < fed, other=0)
        seen = ((bits[:, None] >> (nodes % 64)[None, :].to(tl.int64)) & 1) != 0
    return seen & (nodes < fed)[None, :]


@triton.jit
def _absorb_cached(
    q: tl.tensor,
    factor: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    slot_stride: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    begins: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tl.tensor:
    """(peak, total, sums) of the cached tokens first..last, of which a query sees those from where
    its window begins on; without a window all."""
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, HEAD_SIZE], tl.float32)
    for at in range(first, last, BLOCK_N):
        tokens = at + tl.arange(0, BLOCK_N)
        inside = tokens < last
        visible = inside[None, :]
        if WINDOWED:
            visible = visible & (tokens[None, :] >= begins[:, None])
        places = _places(table, tokens, inside, slot_stride, HEAD_SIZE, PAGE)
        peak, total, sums = _absorb(
            q, factor, keys, values, places, inside, visible, peak, total, sums
        )
    return peak, total, sums


@triton.jit
def _absorb_fed(
    q: tl.tensor,
    factor: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    slot_stride: tl.tensor,
    masks: tl.tensor,
    queries: tl.tensor,
    cached: tl.tensor,
    fed: tl.tensor,
    end: tl.tensor,
    positions: tl.tensor,
    begins: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    sums: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    words: tl.tensor,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tl.tensor:
    """(peak, total, sums) with the fed tokens 0..end, of which each query sees some."""
    for at in range(0, end, BLOCK_N):
        nodes = at + tl.arange(0, BLOCK_N)
        inside = nodes < end
        visible = _visible(masks, queries, nodes, fed, at // 64, words, CAUSAL)
        if WINDOWED:
            stand = tl.load(positions + nodes, mask=nodes < fed, other=0)
            visible = visible & (stand[None, :] >= begins[:, None])
        places = _places(table, cached + nodes, inside, slot_stride, HEAD_SIZE, PAGE)
        peak, total, sums = _absorb(
            q, factor, keys, values, places, inside, visible, peak, total, sums
        )
    return peak, total, sums


@triton.jit
def _store(
    sums: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    logs: tl.tensor,
    places: tl.tensor,
    real: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    divisor = tl.where(total == 0.0, 1.0, total)
    result = (sums / divisor[:, None]).to(out.dtype.element_ty)
    lanes = tl.arange(0, HEAD_SIZE)
    stored = real & (total != 0.0)  # also what is NaN: it must show
    tl.store(out + places[:, None] * HEAD_SIZE + lanes[None, :], result, mask=stored[:, None])
    if SPLITS > 1:
        log = tl.where(total == 0.0, float("-inf"), peak + tl.log2(divisor))
        tl.store(logs + places, log, mask=real)


@triton.jit
def _bounds(
    positions: tl.tensor,
    nodes: tl.tensor,
    real: tl.tensor,
    cached: tl.tensor,
    window: tl.tensor,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The first position that each node sees, and how many cached tokens none of them does."""
    begins, unread = nodes, cached * 0
    if WINDOWED:
        begins = tl.load(positions + nodes, mask=real, other=0) - window + 1
        unread = tl.maximum(cached - window + 1, 0) // BLOCK_N * BLOCK_N
    return begins, unread


# Sizes of a step are no reason to compile again, nor are addresses that no vector is loaded from.
# Strides of queries and slots are the model's: as multiples of 16 they let a thread load 16 bytes.
@triton.jit(
    do_not_specialize=["rows", "sequence_stride", "words", "window"],
    do_not_specialize_on_alignment=["sequences", "masks", "positions", "scale"],
)
def attend_pages(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    sequences: tl.tensor,
    masks: tl.tensor,
    positions: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    logs: tl.tensor,
    factor: tl.tensor,
    rows: tl.tensor,
    query_stride: tl.tensor,
    slot_stride: tl.tensor,
    sequence_stride: tl.tensor,
    words: tl.tensor,
    window: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    CAUSAL: tl.constexpr,
    SCALED: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> None:
    """Grid (query tiles, K/V heads x SPLITS, sequences); out is [SPLITS, rows, heads, size]."""
    head, split = tl.program_id(1) // SPLITS, tl.program_id(1) % SPLITS
    table = sequences + tl.program_id(2) * sequence_stride
    cached, fed, start = tl.load(table), tl.load(table + 1), tl.load(table + 2)
    table, masks = table + 3, masks + start * words
    first = tl.program_id(0) * BLOCK_M
    tile = first + tl.arange(0, BLOCK_M)
    nodes, heads = tile // GROUP_SIZE, head * GROUP_SIZE + tile % GROUP_SIZE
    real = nodes < fed
    places = (start + nodes).to(tl.int64) * query_stride + heads * HEAD_SIZE
    places = places[:, None] + tl.arange(0, HEAD_SIZE)[None, :]
    q = tl.load(queries + places, mask=real[:, None], other=0.0)
    keys, values = keys + head * HEAD_SIZE, values + head * HEAD_SIZE
    value_scale = tl.load(scale) if SCALED else 1.0
    busy = first < fed * GROUP_SIZE
    positions += start
    begins, unread = _bounds(positions, nodes, real, cached, window, BLOCK_N, WINDOWED)
    stretch = tl.cdiv(tl.cdiv(cached - unread, BLOCK_N), SPLITS) * BLOCK_N
    at = unread + split * stretch
    last = tl.where(busy, tl.minimum(cached, at + stretch), 0)
    peak, total, sums = _absorb_cached(
        q, factor * value_scale, keys, values, table, slot_stride, at, last, begins,
        HEAD_SIZE, PAGE, BLOCK_M, BLOCK_N, WINDOWED,
    )  # fmt: skip
    end = tl.minimum(fed, (first + BLOCK_M - 1) // GROUP_SIZE + 1)  # parents come first
    end = tl.where(busy & (split == SPLITS - 1), end, 0)
    peak, total, sums = _absorb_fed(
        q, factor * value_scale, keys, values, table, slot_stride, masks, nodes, cached, fed, end,
        positions, begins, peak, total, sums, HEAD_SIZE, PAGE, words, BLOCK_N, CAUSAL, WINDOWED,
    )  # fmt: skip
    places = (split * rows + start + nodes) * (KV_HEADS * GROUP_SIZE) + heads
    _store(sums * value_scale, peak, total, out, logs, places, real, HEAD_SIZE, SPLITS)


@triton.jit(do_not_specialize=["stride"])
def combine(
    parts: tl.tensor,
    logs: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """One row and head a program, grid (stride,): the splits' outputs by their weights."""
    place = tl.program_id(0)
    splits, lanes = tl.arange(0, SPLITS), tl.arange(0, HEAD_SIZE)
    log = tl.load(logs + splits * stride + place)
    there = log != float("-inf")  # NaN too, of a row that sees one
    weights = tl.where(there, tl.exp2(log - tl.max(log, 0)), 0.0)
    places = (splits.to(tl.int64) * stride + place)[:, None] * HEAD_SIZE + lanes[None, :]
    part = tl.load(parts + places, mask=there[:, None], other=0.0)
    divisor = tl.sum(weights, 0)
    result = tl.sum(part * weights[:, None], 0) / tl.where(divisor == 0.0, 1.0, divisor)
    tl.store(out + place * HEAD_SIZE + lanes, result.to(out.dtype.element_ty))
