"""Attention of packed tokens over the paged cache, with a tree mask.

Sequences that are attended together form a group: queries and keys are padded to the group's
longest. The query heads that share a K/V head are folded into the query axis, so keys and values
are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.formats.tensors import E4M3, dequantize


class Group(Protocol):
    """Sequences of a step that are attended together."""

    @property
    def rows(self) -> slice:
        """The group's stretch of the packed tokens."""

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: Tensor | None = None
    ) -> Tensor:
        """As the function `attend`."""


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

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: Tensor | None = None
    ) -> Tensor:
        """Attention outputs of the group's rows."""
        return attend(queries, keys, values, self, scale)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    group: AttentionGroup,
    scale: Tensor | None = None,
) -> Tensor:
    """Attention outputs of a group's rows.

    Args:
        queries: [rows, heads, head_size], the group's rows only.
        keys: the layer's cached keys, [slots, kv_heads, head_size], fed tokens included.
        values: the layer's cached values, same shape.
        scale: of FP8 keys and values, whose bytes are given; None: they have the queries' type.

    Returns:
        [rows, heads * head_size].
    """
    batch, count, length = group.shape
    kv_heads, size = keys.shape[1:]
    group_size = queries.shape[1] // kv_heads
    if group.pad is not None:
        queries = queries.index_select(0, group.pad)
    q = queries.view(batch, count, kv_heads, group_size, size).permute(0, 2, 3, 1, 4)
    k, v = (
        _read(cached, group, scale, queries.dtype).view(batch, length, kv_heads, size)
        for cached in (keys, values)
    )
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if group.causal:
        out = _causal(q, k, v)
    else:
        q = q.reshape(batch, kv_heads, group_size * count, size)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.bias)
        out = out.view(batch, kv_heads, group_size, count, size)
    out = out.permute(0, 3, 1, 2, 4).reshape(batch * count, -1)
    return out if group.unpad is None else out.index_select(0, group.unpad)


def _read(
    cached: Tensor, group: AttentionGroup, scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    visible = _visible(cached, group)
    return visible if scale is None else dequantize(visible.view(E4M3), scale, dtype)


def _visible(cached: Tensor, group: AttentionGroup) -> Tensor:
    if isinstance(group.keys, slice):
        return cached[group.keys]
    return cached.index_select(0, group.keys)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A whole prompt: no mask, at the price of repeated K/V heads. q is [1, kv, group, Q, d]."""
    batch, kv_heads, group_size, count, size = q.shape
    q = q.reshape(batch, kv_heads * group_size, count, size)
    k, v = k.repeat_interleave(group_size, dim=1), v.repeat_interleave(group_size, dim=1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.view(batch, kv_heads, group_size, count, size)
