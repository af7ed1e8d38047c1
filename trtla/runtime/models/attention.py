"""Attention of a step's fed tokens in PyTorch: the keys that each reads, and the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.formats.torch_tensors import E4M3, dequantize
from trtla.runtime.models.kv_cache import SlotTable
from trtla.runtime.models.mask import seen_nodes
from trtla.runtime.sequence import Feed


class StepGroup(Protocol):
    """Sequences of a step that are attended together."""

    @property
    def rows(self) -> slice:
        """The group's range of the packed tokens."""

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention outputs of the group's rows, [rows, heads * head_size].

        Args:
            queries: [rows, heads, head_size], the group's rows only.
            keys: the layer's cached keys, [slots, kv_heads, head_size], fed tokens included.
            values: the layer's cached values, same shape.
            scale: of FP8 keys and values, which come as bytes; None: they have the queries' type.
            sinks: [heads], scores beside those of keys, without a value; None: there are none.
        """


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """B sequences with up to Q fed tokens and up to L visible cache slots each."""

    rows: slice
    """The group's range of the packed tokens."""
    shape: tuple[int, int, int]
    """(B, Q, L)."""
    keys: slice | Tensor
    """Cache slots of all keys: a range when B is 1 and consecutive, else int64 [B * L]."""
    bias: Tensor | None
    """0 where visible, else -inf: [B, 1, heads per K/V head * Q, L]; None: all visible."""
    causal: bool = False
    """Q == L tokens of one prompt, each sees itself and those before; `bias` is None."""
    pad: Tensor | None = None
    """Row (within the group) of each padded query, int64 [B * Q]; None when nothing is padded."""
    unpad: Tensor | None = None
    """Padded query of each row, int64 [rows]; None when nothing is padded."""
    guarded: bool = False
    """Keys and values may hold numbers that are not finite, which must not reach queries that do
    not see them: their weight is 0, and 0 times NaN is NaN."""

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: Tensor | None = None,
        sinks: Tensor | None = None,
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
        bias = self.bias
        if sinks is not None:
            q, k, v = _with_sinks(q, k, v, sinks.to(q.dtype))
            bias = _causal_bias(q) if self.causal else None if bias is None else F.pad(bias, (0, 1))
        out = _causal(q, k, v, bias, size) if self.causal else _attend(q, k, v, bias, size)
        if broken is not None:
            out = out.masked_fill(self._seen(broken)[..., None], float("nan"))
        out = out.permute(0, 3, 1, 2, 4).reshape(batch * count, -1)
        return out if self.unpad is None else out.index_select(0, self.unpad)

    def _seen(self, keys: Tensor) -> Tensor:
        """Mark queries that see any of keys [B, K/V heads, L]: [B, K/V heads, 1 or heads, Q]."""
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


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, size: int) -> Tensor:
    """The outputs of queries [B, K/V heads, group, Q, d], `size` numbers each."""
    folded = q.flatten(2, 3)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=bias, scale=size**-0.5)
    return out.view(q.shape)[..., :size]


def _causal(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, size: int) -> Tensor:
    """The same of a whole prompt: with a small mask or none, at the price of repeated K/V heads."""
    k, v = (part.repeat_interleave(q.shape[2], dim=1) for part in (k, v))
    heads = q.flatten(1, 2)
    out = F.scaled_dot_product_attention(
        heads, k, v, attn_mask=bias, is_causal=bias is None, scale=size**-0.5
    )
    return out.view(q.shape)[..., :size]


_PADDING = 8  # numbers by which heads grow: kernels take multiples of it


def _with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with one key more, behind the others, whose score is the sink of
    each head and whose value is 0."""
    size, kv_heads, group_size = q.shape[-1], *q.shape[1:3]
    q = F.pad(q, (0, _PADDING))
    q[..., size] = (sinks * size**0.5).view(kv_heads, group_size, 1)
    k, v = (F.pad(part, (0, _PADDING, 0, 1)) for part in (k, v))
    k[..., -1, size] = 1.0
    return q, k, v


def _causal_bias(q: Tensor) -> Tensor:
    """The bias of a whole prompt, and of the sinks behind its keys: [Q, Q + 1]."""
    count = q.shape[3]
    hidden = q.new_full((count, count), float("-inf")).triu(1)
    return F.pad(hidden, (0, 1))


_MASK_WIDTH = 16
_PIECE = 256
"""Tokens of a prompt that read the same keys, though each has its own window."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A feed, and the slots of its sequence that are read; offsets count from the first of them."""

    feed: Feed
    table: SlotTable
    window: int | None

    @property
    def first(self) -> int:
        """The position of the first key that its first token sees."""
        before = self.feed.sequence.num_cached
        return 0 if self.window is None else max(0, before + 1 - self.window)

    @property
    def cached(self) -> int:
        return self.feed.sequence.num_cached - self.first

    @property
    def total(self) -> int:
        return self.feed.total - self.first

    def pieces(self) -> Iterator[_Reader]:
        """Itself, or pieces of a prompt longer than the window, which read little more than it."""
        feed, size = self.feed, len(self.feed.tokens)
        if feed.draft is not None or self.window is None or feed.total <= self.window:
            yield self
            return
        for start in range(0, size, _PIECE):
            later = replace(feed.sequence, num_cached=feed.sequence.num_cached + start)
            tokens = feed.tokens[start : start + _PIECE]
            yield replace(self, feed=replace(feed, tokens=tokens, sequence=later))


def attention_groups(
    feeds: Seq[Feed],
    tables: Seq[SlotTable],
    group_size: int,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None,
) -> tuple[AttentionGroup, ...]:
    """Group feeds that are attended together; arguments as of `make_batch`."""
    readers = [_Reader(*pair, window) for pair in zip(feeds, tables, strict=True)]
    prompts = (reader for reader in readers if reader.feed.draft is None)
    together = [[piece] for prompt in prompts for piece in prompt.pieces()]
    if trees := [reader for reader in readers if reader.feed.draft is not None]:
        together.append(trees)
    groups, start = [], 0
    for members in together:
        groups.append(_group(members, start, group_size, dtype, device))
        start = groups[-1].rows.stop
    return tuple(groups)


def _group(
    readers: Seq[_Reader], start: int, group_size: int, dtype: torch.dtype, device: torch.device
) -> AttentionGroup:
    counts = [len(reader.feed.tokens) for reader in readers]
    totals = [reader.total for reader in readers]
    count, length = max(counts), max(totals)
    rows = slice(start, start + sum(counts))
    shape = (len(readers), count, length)
    keys = _keys(readers, totals, device)
    first = readers[0]
    is_prompt = first.feed.draft is None
    if is_prompt and first.feed.sequence.num_cached == 0 and length <= (first.window or length):
        return AttentionGroup(rows, shape, keys, None, causal=True)
    bias = None
    if count > 1 or min(totals) < length:
        # On a GPU PyTorch copies a mask of any other width, in every layer.
        width = length if device.type == "cpu" else -(-length // _MASK_WIDTH) * _MASK_WIDTH
        if is_prompt:
            wide = _chunk_bias(first, width, group_size, dtype, device)
        else:
            wide = _bias(readers, (len(readers), count, width), group_size, dtype).to(device)
        bias = wide[..., :length]
    if min(counts) == count:
        return AttentionGroup(rows, shape, keys, bias)
    pad, unpad = _padding(counts, device)
    return AttentionGroup(rows, shape, keys, bias, pad=pad, unpad=unpad)


def _keys(readers: Seq[_Reader], totals: list[int], device: torch.device) -> slice | Tensor:
    """Slots of all keys; shorter sequences are padded with a slot that the bias hides."""
    firsts = [r.table.first + r.first for r in readers if r.table.first is not None]
    if len(firsts) < len(readers):
        return _scattered_keys(readers, max(totals)).to(device)
    if len(readers) == 1:
        return slice(firsts[0], firsts[0] + totals[0])
    offsets = _places(max(totals))
    start, total = torch.tensor((firsts, totals)).unsqueeze(-1)
    slots = torch.where(offsets < total, offsets + start, start)
    return slots.flatten().to(device)


def _scattered_keys(readers: Seq[_Reader], length: int) -> Tensor:
    parts = []
    for reader in readers:
        slots = reader.table.slots[reader.first : reader.feed.total]
        parts += [slots, np.full(length - reader.total, slots[0])]
    return torch.from_numpy(np.concatenate(parts))


def _chunk_bias(
    reader: _Reader, width: int, group_size: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The bias of a piece of a prompt behind cached tokens, made on the device that uses it."""
    last = torch.arange(reader.feed.length, device=device).unsqueeze(1) + reader.cached
    offsets = torch.arange(width, device=device)
    hidden = offsets > last
    if reader.window is not None:
        hidden |= offsets <= last - reader.window
    bias = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return bias.masked_fill_(hidden, float("-inf")).repeat(group_size, 1)[None, None]


def _bias(
    readers: Seq[_Reader], shape: tuple[int, int, int], group_size: int, dtype: torch.dtype
) -> Tensor:
    batch, count, length = shape
    if batch == 1:
        bias = torch.zeros((1, 1, group_size, count, length), dtype=dtype)
        _hide(bias[0, 0], readers[0])
        return bias.flatten(2, 3)
    # Padded queries see the cached tokens: a row of -inf alone would give NaN.
    alone = [len(reader.feed.tokens) == 1 for reader in readers]
    seen = [r.total if single else r.cached for r, single in zip(readers, alone, strict=True)]
    hidden = _places(length) >= torch.tensor(seen).unsqueeze(-1)
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    bias = bias[:, None, None].repeat(1, 1, group_size * count, 1)
    by_query = bias.view(batch, group_size, count, length)
    for index, reader in enumerate(readers):
        if not alone[index]:
            _hide(by_query[index, :, : reader.feed.length], reader)
    return bias


def _hide(bias: Tensor, reader: _Reader) -> None:
    """Hide from each node of a tree the keys that it does not see; bias is [heads, nodes, keys]."""
    parents, cached, total = reader.feed.tree.parents, reader.cached, reader.total
    bias[..., cached:total] = tree_bias(parents)
    if reader.window is not None:
        depths = torch.tensor([reader.feed.depth(node) for node in range(reader.feed.length)])
        offsets = torch.cat((_places(cached), cached + depths))
        hidden = offsets <= (cached + depths - reader.window).unsqueeze(-1)
        bias[..., :total].masked_fill_(hidden, float("-inf"))


def integers(values: list[int], device: torch.device) -> Tensor:
    """Return the numbers on the device, int64."""
    return torch.tensor(values, dtype=torch.int64).to(device)


@lru_cache(maxsize=8)
def _places(length: int) -> Tensor:
    return torch.arange(length)


@lru_cache(maxsize=4096)
def tree_bias(parents: tuple[int, ...]) -> Tensor:
    """0 where a node sees itself or an ancestor, -inf elsewhere; float32 [nodes, nodes]."""
    hidden = torch.from_numpy(seen_nodes(parents)) == 0
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def _padding(counts: Seq[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """(row of each padded query, padded query of each row), both within the group."""
    longest, start = max(counts), 0
    pad: list[int] = []
    unpad: list[int] = []
    for index, count in enumerate(counts):
        pad += [start + min(query, count - 1) for query in range(longest)]
        unpad += range(index * longest, index * longest + count)
        start += count
    return integers(pad, device), integers(unpad, device)
