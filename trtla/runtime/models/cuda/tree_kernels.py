"""Triton kernels of attention of generation steps over a paged cache.

`attend_trees` and `attend_paths` give a row the same bits whatever else is fed. The text before it
is cut at multiples of STRETCH, each part is read in blocks in the order of the text, and the parts
are joined from left to right. Tiles of queries read the blocks that all nodes of a tree see as a
whole. Each node then reads the last blocks, which end in its own path, and continues the sums of
its tile. Matrix products add along the keys in the order of the text, and sums of weights are
exact. Where a compiler might fuse a product and a sum, the fused operation is explicit.
"""

# Triton comes without type hints and is not there on every machine; its constants are capitals.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,misc,no-any-return"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from trtla.runtime.models.cuda.kernels import absorb, first_seen, token_places


@triton.jit
def _joined(
    peak: tl.tensor,
    total: tl.tensor,
    sums: tl.tensor,
    next_peak: tl.tensor,
    next_total: tl.tensor,
    next_sums: tl.tensor,
) -> tl.tensor:
    """Return (peak, total, sums) of two parts, whose peaks include the factor."""
    higher = tl.maximum(peak, next_peak)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    old, new = tl.exp2(peak - base), tl.exp2(next_peak - base)
    total = tl.fma(total, old, next_total * new)
    old = tl.broadcast_to(old[:, None], sums.shape)
    return higher, total, tl.fma(sums, old, next_sums * new[:, None])


@triton.jit
def _closed(peak: tl.tensor, factor: tl.tensor) -> tl.tensor:
    """Return a peak times the factor for `_joined`; adding zero rounds the product by itself."""
    nothing = tl.zeros(peak.shape, tl.float32)
    return tl.fma(peak, tl.full(peak.shape, factor, tl.float32), nothing)


@triton.jit
def _empty(BLOCK_M: tl.constexpr, HEAD_SIZE: tl.constexpr) -> tl.tensor:
    """Return (peak, total, sums) of no keys."""
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    return peak, tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M, HEAD_SIZE], tl.float32)


@triton.jit
def _absorb_tokens(
    q: tl.tensor, factor: tl.tensor, keys: tl.tensor, values: tl.tensor, table: tl.tensor,
    slot_stride: tl.tensor, path: tl.tensor, cached: tl.tensor, first: tl.tensor, last: tl.tensor,
    begins: tl.tensor, peak: tl.tensor, total: tl.tensor, sums: tl.tensor,
    HEAD_SIZE: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, ALONE: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add tokens first..last of a text; with ALONE a node finds the fed ones by its path."""
    for at in range(first, last, BLOCK_N):
        tokens = at + tl.arange(0, BLOCK_N)
        inside, stored = tokens < last, tokens
        if ALONE:
            behind = inside & (tokens >= cached)
            node = tl.load(path + tokens - cached, mask=behind, other=0).to(tl.int32)
            stored = tl.where(behind, cached + node, tokens)
        visible = inside[None, :]
        if WINDOWED:
            visible = visible & (tokens[None, :] >= begins[:, None])
        places = token_places(table, stored, inside, slot_stride, HEAD_SIZE, PAGE)
        peak, total, sums = absorb(
            q, factor, keys, values, places, inside, visible, peak, total, sums
        )
    return peak, total, sums


@triton.jit
def _shared_end(cached: tl.tensor, fed: tl.tensor, BLOCK_N: tl.constexpr) -> tl.tensor:
    """Return the end of the blocks that all nodes of a tree see as a whole.

    For a single node it is the end of its text.
    """
    return tl.where(fed == 1, cached + 1, cached // BLOCK_N * BLOCK_N)


@triton.jit
def _store_part(
    parts: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    places: tl.tensor,
    real: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    sums: tl.tensor,
    HEAD_SIZE: tl.constexpr,
) -> None:
    """Store (peak, total, sums) of some heads."""
    tl.store(peaks + places, peak, mask=real)
    tl.store(totals + places, total, mask=real)
    places = places[:, None] * HEAD_SIZE + tl.arange(0, HEAD_SIZE)[None, :]
    tl.store(parts + places, sums, mask=real[:, None])


@triton.jit(
    do_not_specialize=["rows", "slots", "spans", "tiles", "sequence_stride", "window"],
    do_not_specialize_on_alignment=["sequences", "positions", "scale", "peaks", "totals"],
)
def attend_trees(
    queries: tl.tensor, keys: tl.tensor, values: tl.tensor, sequences: tl.tensor,
    positions: tl.tensor, scale: tl.tensor, parts: tl.tensor, peaks: tl.tensor, totals: tl.tensor,
    factor: tl.tensor, rows: tl.tensor, slots: tl.tensor, spans: tl.tensor, tiles: tl.tensor,
    query_stride: tl.tensor, slot_stride: tl.tensor, sequence_stride: tl.tensor, window: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STRETCH: tl.constexpr, SPLIT: tl.constexpr,
    SCALED: tl.constexpr, WINDOWED: tl.constexpr,
) -> None:  # fmt: skip
    """Attend the shared text; grid (sequences x tiles x spans, K/V heads).

    Parts are [slots + 1, rows, heads, size]. With SPLIT the spans take the stretches of a text in
    turn and store each in its slot; else one span joins them in slot 0. The stretch in which the
    cached tokens end stays open, in the last slot."""
    head, tile, span = tl.program_id(1), tl.program_id(0) // spans, tl.program_id(0) % spans
    table = sequences + tile // tiles * sequence_stride
    cached, fed, start = tl.load(table), tl.load(table + 1), tl.load(table + 2)
    first, end = tile % tiles * BLOCK_M, _shared_end(cached, fed, BLOCK_N)
    if (first < fed * GROUP_SIZE) & (span * STRETCH < end):
        lane, lanes = first + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_SIZE)
        nodes, heads = lane // GROUP_SIZE, head * GROUP_SIZE + lane % GROUP_SIZE
        real = nodes < fed
        places = (start + nodes).to(tl.int64) * query_stride + heads * HEAD_SIZE
        q = tl.load(queries + places[:, None] + lanes[None, :], mask=real[:, None], other=0.0)
        keys, values = keys + head * HEAD_SIZE, values + head * HEAD_SIZE
        scaled = factor * tl.load(scale) if SCALED else factor
        begins, unread = first_seen(
            positions + start, nodes, real, cached, window, BLOCK_N, WINDOWED
        )
        places = (start + nodes).to(tl.int64) * (KV_HEADS * GROUP_SIZE) + heads
        step = rows.to(tl.int64) * (KV_HEADS * GROUP_SIZE)
        whole = cached // STRETCH
        peak, total, sums = _empty(BLOCK_M, HEAD_SIZE)
        for number in range(span, tl.cdiv(end, STRETCH), spans):
            next_peak, next_total, next_sums = _empty(BLOCK_M, HEAD_SIZE)
            next_peak, next_total, next_sums = _absorb_tokens(
                q, scaled, keys, values, table + 3, slot_stride, positions, cached,
                tl.maximum(number * STRETCH, unread), tl.minimum(number * STRETCH + STRETCH, end),
                begins, next_peak, next_total, next_sums, HEAD_SIZE, PAGE, BLOCK_N, False, WINDOWED,
            )  # fmt: skip
            if (number < whole) & (not SPLIT):
                next_peak = _closed(next_peak, scaled)
                peak, total, sums = _joined(peak, total, sums, next_peak, next_total, next_sums)
            else:
                is_open = number == whole
                slot = tl.where(is_open, slots, number)
                next_peak = tl.where(is_open, next_peak, _closed(next_peak, scaled))
                _store_part(
                    parts, peaks, totals, slot * step + places, real,
                    next_peak, next_total, next_sums, HEAD_SIZE,
                )  # fmt: skip
        if (whole > 0) & (not SPLIT):
            _store_part(parts, peaks, totals, places, real, peak, total, sums, HEAD_SIZE)


@triton.jit
def _load_part(
    parts: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    places: tl.tensor,
    there: tl.tensor,
    HEAD_SIZE: tl.constexpr,
) -> tl.tensor:
    """Return (peak, total, sums) of some heads, those of no keys for an absent part."""
    peak = tl.load(peaks + places, mask=there, other=float("-inf"))
    total = tl.load(totals + places, mask=there, other=0.0)
    places = places[:, None] * HEAD_SIZE + tl.arange(0, HEAD_SIZE)[None, :]
    return peak, total, tl.load(parts + places, mask=there[:, None], other=0.0)


@triton.jit
def _joined_parts(
    parts: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    places: tl.tensor,
    real: tl.tensor,
    step: tl.tensor,
    used: tl.tensor,
    BLOCK_M: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
) -> tl.tensor:
    """Return the first parts of some heads, joined from left to right."""
    peak, total, sums = _empty(BLOCK_M, HEAD_SIZE)
    for part in range(0, used, 4):  # four loads at a time do not wait for each other
        peak_0, total_0, sums_0 = _load_part(
            parts, peaks, totals, part * step + places, real, HEAD_SIZE
        )
        peak_1, total_1, sums_1 = _load_part(
            parts, peaks, totals, (part + 1) * step + places, real & (part + 1 < used), HEAD_SIZE
        )
        peak_2, total_2, sums_2 = _load_part(
            parts, peaks, totals, (part + 2) * step + places, real & (part + 2 < used), HEAD_SIZE
        )
        peak_3, total_3, sums_3 = _load_part(
            parts, peaks, totals, (part + 3) * step + places, real & (part + 3 < used), HEAD_SIZE
        )
        peak, total, sums = _joined(peak, total, sums, peak_0, total_0, sums_0)
        peak, total, sums = _joined(peak, total, sums, peak_1, total_1, sums_1)
        peak, total, sums = _joined(peak, total, sums, peak_2, total_2, sums_2)
        peak, total, sums = _joined(peak, total, sums, peak_3, total_3, sums_3)
    return peak, total, sums


@triton.jit(
    do_not_specialize=["rows", "slots", "sequence_stride", "path_stride", "window"],
    do_not_specialize_on_alignment=[
        "sequences",
        "owners",
        "paths",
        "positions",
        "scale",
        "peaks",
        "totals",
    ],
)
def attend_paths(
    queries: tl.tensor, keys: tl.tensor, values: tl.tensor, sequences: tl.tensor,
    owners: tl.tensor, paths: tl.tensor, positions: tl.tensor, scale: tl.tensor, parts: tl.tensor,
    peaks: tl.tensor, totals: tl.tensor, out: tl.tensor, factor: tl.tensor, rows: tl.tensor,
    slots: tl.tensor, query_stride: tl.tensor, slot_stride: tl.tensor, sequence_stride: tl.tensor,
    path_stride: tl.tensor, window: tl.tensor, KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STRETCH: tl.constexpr, SPLIT: tl.constexpr, SCALED: tl.constexpr, WINDOWED: tl.constexpr,
) -> None:  # fmt: skip
    """Join a node's parts and attend the end of its text; grid (rows, K/V heads)."""
    row, head = tl.program_id(0), tl.program_id(1)
    owner = tl.load(owners + row).to(tl.int32)
    if owner >= 0:
        table = sequences + owner * sequence_stride
        cached, fed = tl.load(table), tl.load(table + 1)
        position = tl.load(positions + row).to(tl.int32)
        lane, lanes = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_SIZE)
        heads, real = head * GROUP_SIZE + lane, lane < GROUP_SIZE
        places = row.to(tl.int64) * query_stride + heads * HEAD_SIZE
        q = tl.load(queries + places[:, None] + lanes[None, :], mask=real[:, None], other=0.0)
        keys, values = keys + head * HEAD_SIZE, values + head * HEAD_SIZE
        scaled = factor * tl.load(scale) if SCALED else factor
        places = row.to(tl.int64) * (KV_HEADS * GROUP_SIZE) + heads
        step = rows.to(tl.int64) * (KV_HEADS * GROUP_SIZE)
        whole, shared = cached // STRETCH, _shared_end(cached, fed, BLOCK_N)
        begins = position - window + 1 + lane * 0
        peak, total, sums = _joined_parts(
            parts, peaks, totals, places, real, step,
            whole if SPLIT else tl.minimum(whole, 1), BLOCK_M, HEAD_SIZE,
        )  # fmt: skip
        next_peak, next_total, next_sums = _load_part(
            parts,
            peaks,
            totals,
            slots * step + places,
            real & (whole * STRETCH < shared),
            HEAD_SIZE,
        )
        for number in range(whole, position // STRETCH + 1):
            stop = tl.minimum(number * STRETCH + STRETCH, position + 1)
            next_peak, next_total, next_sums = _absorb_tokens(
                q, scaled, keys, values, table + 3, slot_stride, paths + row * path_stride, cached,
                tl.maximum(number * STRETCH, shared), stop,
                begins, next_peak, next_total, next_sums, HEAD_SIZE, PAGE, BLOCK_N, True, WINDOWED,
            )  # fmt: skip
            next_peak = _closed(next_peak, scaled)
            peak, total, sums = _joined(peak, total, sums, next_peak, next_total, next_sums)
            next_peak, next_total, next_sums = _empty(BLOCK_M, HEAD_SIZE)
        if SCALED:
            sums = sums * tl.load(scale)
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        places = places[:, None] * HEAD_SIZE + lanes[None, :]
        tl.store(out + places, result.to(out.dtype.element_ty), mask=real[:, None])
