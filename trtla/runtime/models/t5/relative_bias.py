"""T5's relative position bias for packed feeds, trees included: distances, buckets, masks.

A draft's node stands at its depth, so its distance to what it sees follows from positions alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from trtla.runtime.models.attention import AttentionGroup, Group
from trtla.runtime.sequence import Feed


def distance_buckets(num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance backwards, 0 to max_distance; those beyond share the last's.

    Half of the buckets are single distances, the rest grow logarithmically (T5, section 2.1).
    Computed in float32, like transformers: a bucket's edge must not move by a rounding.
    """
    exact = num_buckets // 2
    distances = torch.arange(max_distance + 1)
    grown = torch.log(distances.float() / exact) / math.log(max_distance / exact)
    large = exact + (grown.clamp(min=0) * (num_buckets - exact)).long()
    return torch.where(distances < exact, distances, large.clamp(max=num_buckets - 1))


class RelativeBias:
    """What is added to attention scores, by head and by how far back a key stands.

    Args:
        weight: [buckets, heads].
        max_distance: from here on all distances are alike.
    """

    def __init__(self, weight: Tensor, max_distance: int) -> None:
        buckets = distance_buckets(len(weight), max_distance).to(weight.device)
        self._by_distance = weight[buckets].t().contiguous()
        self._most = max_distance

    def __call__(self, distances: Tensor) -> Tensor:
        """Scores [batch, heads, queries, keys] of distances [batch, queries, keys]."""
        return self._by_distance[:, distances.clamp(0, self._most)].transpose(0, 1)


class RelativeGroups:
    """The attention groups of a step, and how far each of their queries stands behind each key."""

    def __init__(
        self, feeds: Sequence[Feed], groups: Sequence[Group], device: torch.device
    ) -> None:
        self._groups = cast("Sequence[AttentionGroup]", groups)  # `make_batch` makes no others
        self._distances = [
            _distances(members, group).to(device)
            for members, group in zip(_members(feeds), self._groups, strict=True)
        ]

    def biased(self, bias: RelativeBias) -> list[AttentionGroup]:
        """The groups with this bias beside their masks."""
        return [
            replace(group, bias=_masked(bias(distances), group), causal=False)
            for group, distances in zip(self._groups, self._distances, strict=True)
        ]


def _members(feeds: Sequence[Feed]) -> list[list[Feed]]:
    """The feeds of each group, as `make_batch` groups them."""
    alone = [[feed] for feed in feeds if feed.draft is None]
    steps = [feed for feed in feeds if feed.draft is not None]
    return [*alone, steps] if steps else alone


def _distances(feeds: Sequence[Feed], group: AttentionGroup) -> Tensor:
    """int64 [batch, queries, keys]; negative ones and those of padding are masked anyway."""
    batch, count, length = group.shape
    queries = torch.zeros((batch, count), dtype=torch.int64)
    keys = torch.arange(length).repeat(batch, 1)
    for index, feed in enumerate(feeds):
        positions = torch.tensor(feed.positions())
        queries[index, : feed.length] = positions
        keys[index, feed.sequence.num_cached : feed.total] = positions
    return queries[:, :, None] - keys[:, None, :]


def _masked(scores: Tensor, group: AttentionGroup) -> Tensor:
    if group.causal:
        later = torch.ones(group.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(later, float("-inf"))
    return scores if group.bias is None else scores + group.bias
