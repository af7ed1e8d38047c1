"""A step's feeds as the tensors of one forward over packed tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.formats.torch_tensors import E4M3, dequantize
from trtla.runtime.models.kv_cache import SlotTable
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sequence import Feed


class StepGroup(Protocol):
    """Sequences of a step that are attended together."""

    @property
    def rows(self) -> slice:
        """The group's stretch of the packed tokens."""

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: Tensor | None = None
    ) -> Tensor:
        """Attention outputs of the group's rows, [rows, heads * head_size].

        Args:
            queries: [rows, heads, head_size], the group's rows only.
            keys: the layer's cached keys, [slots, kv_heads, head_size], fed tokens included.
            values: the layer's cached values, same shape.
            scale: of FP8 keys and values, whose bytes are given; None: they have the queries' type.
        """


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """B sequences with up to Q fed tokens and up to L visible cache slots each."""

    rows: slice
    """The group's stretch of the packed tokens."""
    shape: tuple[int, int, int]
    """(B, Q, L)."""
    keys: slice | Tensor
    """Cache slots of all keys: a stretch when B is 1 and consecutive, else int64 [B * L]."""
    bias: Tensor | None
    """0 where visible, else -inf: [B, 1, heads per K/V head * Q, L]; None: all visible."""
    causal: bool = False
    """Q == L tokens of one prompt, each sees itself and those before; `bias` is None."""
    pad: Tensor | None = None
    """Row (within the group) of each padded query, int64 [B * Q]; None when nothing is padded."""
    unpad: Tensor | None = None
    """Padded query of each row, int64 [rows]; None when nothing is padded."""
    guarded: bool = False
    """Whether keys and values may hold numbers that are not finite, which must not reach queries
    that do not see them: their weight is 0, and 0 times NaN is NaN."""

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: Tensor | None = None
    ) -> Tensor:
        batch, count, length = self.shape
        kv_heads, size = keys.shape[1:]
        group_size = queries.shape[1] // kv_heads
        if self.pad is not None:
            queries = queries.index_select(0, self.pad)
        q = queries.view(batch, count, kv_heads, group_size, size).permute(0, 2, 3, 1, 4)
        k, v = (
            _read(cached, self, scale, queries.dtype).view(batch, length, kv_heads, size)
            for cached in (keys, values)
        )
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        broken = None
        if self.guarded:
            broken = ~(k.isfinite() & v.isfinite()).all(-1)
            k, v = (part.masked_fill(broken[..., None], 0.0) for part in (k, v))
        if self.causal:
            out = _causal(q, k, v)
        else:
            q = q.reshape(batch, kv_heads, group_size * count, size)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
            out = out.view(batch, kv_heads, group_size, count, size)
        if broken is not None:
            out = out.masked_fill(self._seen(broken)[..., None], float("nan"))
        out = out.permute(0, 3, 1, 2, 4).reshape(batch * count, -1)
        return out if self.unpad is None else out.index_select(0, self.unpad)

    def _seen(self, keys: Tensor) -> Tensor:
        """Which queries see any of the keys [B, K/V heads, L]: [B, K/V heads, 1 or heads, Q]."""
        if self.causal:
            return (keys.cumsum(-1) > 0).unsqueeze(2)
        if self.bias is None:
            return keys.any(-1)[..., None, None]
        visible = self.bias > float("-inf")
        seen = (visible & keys.unsqueeze(2)).any(-1)
        return seen.view(*seen.shape[:2], -1, self.shape[1])


def _read(
    cached: Tensor, group: AttentionGroup, scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    slots = group.keys
    visible = cached[slots] if isinstance(slots, slice) else cached.index_select(0, slots)
    return visible if scale is None else dequantize(visible.view(E4M3), scale, dtype)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A whole prompt: no mask, at the price of repeated K/V heads. q is [1, kv, group, Q, d]."""
    batch, kv_heads, group_size, count, size = q.shape
    q = q.reshape(batch, kv_heads * group_size, count, size)
    k, v = k.repeat_interleave(group_size, dim=1), v.repeat_interleave(group_size, dim=1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.view(batch, kv_heads, group_size, count, size)


_MASK_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward's input: packed tokens of all feeds, prompts first."""

    tokens: Tensor
    positions: Tensor
    lengths: Tensor
    """Text length each token's rotary scaling counts with."""
    slots: Tensor
    """Cache slot of each fed token."""
    groups: tuple[StepGroup, ...]
    rows: Tensor
    """Packed rows whose logits are wanted, feed by feed."""
    moves: Tensor | None = None
    """Slots whose keys and values are moved before any are read: int64 [2, moves], from which and
    to which. None: nothing is moved."""


def all_finite(states: Tensor) -> bool:
    """Whether no number is infinite or NaN; huge ones, whose sum overflows, are taken for such."""
    exact = torch.promote_types(states.dtype, torch.float32)
    return math.isfinite(float(states.sum(dtype=exact)))


def guarded(batch: Batch) -> Batch:
    """The same batch, none of whose tokens can spoil one that does not see it."""
    groups = cast("Seq[AttentionGroup]", batch.groups)  # paged ones need no guard
    return replace(batch, groups=tuple(replace(group, guarded=True) for group in groups))


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """What a forward over a batch gives."""

    logits: Tensor
    """Float [batch.rows, vocab]; the next forward may overwrite them."""
    hidden: Tensor | None = None
    """Float [taps, tokens, hidden size]; None without taps."""
    states: Tensor | None = None
    """The last layer's output, [tokens, hidden size]; None of a graph."""


def make_batch(feeds: Seq[Feed], cache: TensorCache, group_size: int, dtype: torch.dtype) -> Batch:
    """Pack feeds, prompts first, into the tensors of one forward.

    Args:
        group_size: query heads per K/V head.
        dtype: type of the attention bias, the model's.
    """
    device = cache.data.device
    positions = [feed.positions() for feed in feeds]
    lengths = [feed.lengths(row) for feed, row in zip(feeds, positions, strict=True)]
    starts = [0]
    for feed in feeds:
        starts.append(starts[-1] + len(feed.tokens))
    rows = [start + row for start, feed in zip(starts, feeds, strict=False) for row in feed.rows]
    tables = [cache.table(feed.sequence.blocks) for feed in feeds]
    slots = [
        slot
        for feed, table in zip(feeds, tables, strict=True)
        for slot in table.order[feed.sequence.num_cached :][: len(feed.tokens)]
    ]
    prompts = sum(feed.draft is None for feed in feeds)
    groups = [
        _group([feed], [table], start, group_size, dtype, device)
        for feed, table, start in zip(feeds[:prompts], tables, starts, strict=False)
    ]
    if prompts < len(feeds):
        rest = (feeds[prompts:], tables[prompts:], starts[prompts])
        groups.append(_group(*rest, group_size, dtype, device))
    tokens = [token for feed in feeds for token in feed.tokens]
    flat = ([*chain.from_iterable(positions)], [*chain.from_iterable(lengths)])
    parts = (tokens, *flat, slots, rows)
    packed = _integers([*chain.from_iterable(parts)], device)  # one tensor, one copy to a device
    fed, at, seen, written, wanted = torch.split(packed, [len(part) for part in parts])
    return Batch(fed, at, seen, written, tuple(groups), wanted)


def _integers(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device)


def _group(
    feeds: Seq[Feed],
    tables: Seq[SlotTable],
    start: int,
    group_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionGroup:
    counts = [len(feed.tokens) for feed in feeds]
    totals = [feed.total for feed in feeds]
    count, length = max(counts), max(totals)
    rows = slice(start, start + sum(counts))
    shape = (len(feeds), count, length)
    keys = _keys(feeds, tables, totals, device)
    if feeds[0].draft is None and feeds[0].sequence.num_cached == 0:
        return AttentionGroup(rows, shape, keys, None, causal=True)
    bias = None
    if count > 1 or min(totals) < length:
        # On a GPU PyTorch copies a mask of any other width, in every layer.
        width = length if device.type == "cpu" else -(-length // _MASK_WIDTH) * _MASK_WIDTH
        if feeds[0].draft is None:
            wide = _chunk_bias(feeds[0], width, group_size, dtype, device)
        else:
            wide = _bias(feeds, (len(feeds), count, width), group_size, dtype).to(device)
        bias = wide[..., :length]
    if min(counts) == count:
        return AttentionGroup(rows, shape, keys, bias)
    pad, unpad = _padding(counts, device)
    return AttentionGroup(rows, shape, keys, bias, pad=pad, unpad=unpad)


def _keys(
    feeds: Seq[Feed], tables: Seq[SlotTable], totals: list[int], device: torch.device
) -> slice | Tensor:
    """Slots of all keys; shorter sequences are padded with a slot that the bias hides."""
    firsts = [table.first for table in tables if table.first is not None]
    if len(firsts) < len(feeds):
        return _scattered_keys(feeds, tables, max(totals)).to(device)
    if len(feeds) == 1:
        return slice(firsts[0], firsts[0] + totals[0])
    places = _places(max(totals))
    start, total = torch.tensor((firsts, totals)).unsqueeze(-1)
    slots = torch.where(places < total, places + start, start)
    return slots.flatten().to(device)


def _scattered_keys(feeds: Seq[Feed], tables: Seq[SlotTable], length: int) -> Tensor:
    stretches = []
    for feed, table in zip(feeds, tables, strict=True):
        hidden = np.full(length - feed.total, table.slots[0])
        stretches += [table.slots[: feed.total], hidden]
    return torch.from_numpy(np.concatenate(stretches))


def _chunk_bias(
    feed: Feed, width: int, group_size: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The bias of a stretch of a prompt behind cached tokens, made where it is used."""
    last = torch.arange(feed.length, device=device).unsqueeze(1) + feed.sequence.num_cached
    hidden = torch.arange(width, device=device) > last
    bias = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return bias.masked_fill_(hidden, float("-inf")).repeat(group_size, 1)[None, None]


def _bias(
    feeds: Seq[Feed], shape: tuple[int, int, int], group_size: int, dtype: torch.dtype
) -> Tensor:
    batch, count, length = shape
    if batch == 1:
        bias = torch.zeros((1, 1, group_size, count, length), dtype=dtype)
        bias[..., feeds[0].sequence.num_cached : feeds[0].total] = tree_bias(feeds[0].tree.parents)
        return bias.flatten(2, 3)
    # Padded queries see what is cached: a row of -inf alone would give NaN.
    alone = [len(feed.tokens) == 1 for feed in feeds]
    seen = [
        feed.total if one else feed.sequence.num_cached
        for feed, one in zip(feeds, alone, strict=True)
    ]
    hidden = _places(length) >= torch.tensor(seen).unsqueeze(-1)
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    bias = bias[:, None, None].repeat(1, 1, group_size * count, 1)
    by_query = bias.view(batch, group_size, count, length)
    for index, feed in enumerate(feeds):
        if not alone[index]:
            cached = feed.sequence.num_cached
            by_query[index, :, : feed.length, cached : feed.total] = tree_bias(feed.tree.parents)
    return bias


@lru_cache(maxsize=8)
def _places(length: int) -> Tensor:
    return torch.arange(length)


@lru_cache(maxsize=4096)
def tree_bias(parents: tuple[int, ...]) -> Tensor:
    """0 where a node sees itself or an ancestor, -inf elsewhere; float32 [nodes, nodes]."""
    count = len(parents) + 1
    data = np.frombuffer(seen_nodes(parents, count // 8 + 1), np.uint8).reshape(count, -1)
    visible = np.unpackbits(data, axis=1, count=count, bitorder="little")
    hidden = torch.from_numpy(visible) == 0
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def seen_nodes(parents: Seq[int], size: int) -> bytes:
    """A mask of `size` bytes for each node, little-endian: bit i is set where it sees node i.

    A step whose shape is new must not cost what its forward does.
    """
    seen = [1]
    for node, parent in enumerate(parents, 1):
        seen.append(seen[parent] | 1 << node)
    return b"".join(row.to_bytes(size, "little") for row in seen)


def _padding(counts: Seq[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """(row of each padded query, padded query of each row), both within the group."""
    longest, start = max(counts), 0
    pad: list[int] = []
    unpad: list[int] = []
    for index, count in enumerate(counts):
        pad += [start + min(query, count - 1) for query in range(longest)]
        unpad += range(index * longest, index * longest + count)
        start += count
    return _integers(pad, device), _integers(unpad, device)
