"""A step's feeds as the tensors of one forward over packed tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from trtla.runtime.models.attention import AttentionGroup, StepGroup, attention_groups, integers
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sequence import Feed


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward's input: packed tokens of all feeds, prompts first."""

    tokens: Tensor
    positions: Tensor
    lengths: Tensor
    """The text length on which each token's rotary scaling depends."""
    slots: Tensor
    """Cache slot of each fed token."""
    groups: tuple[StepGroup, ...]
    rows: Tensor
    """Packed rows whose logits are computed, feed by feed."""
    moves: Tensor | None = None
    """Source and target slots of keys and values to move before any are read, int64 [2, moves].
    None: nothing is moved."""
    local: Mapping[int, tuple[StepGroup, ...]] = field(default_factory=dict)
    """The groups of layers with a window, for windows shorter than a text."""
    taps: tuple[int, ...] = ()
    """Layers whose output is wanted."""

    def seen_in(self, window: int | None) -> tuple[StepGroup, ...]:
        """The groups of a layer with this window."""
        return self.groups if window is None else self.local.get(window, self.groups)


def all_finite(states: Tensor) -> bool:
    """Return True if no number is infinite or NaN, nor the sum of all of them."""
    exact = torch.promote_types(states.dtype, torch.float32)
    return math.isfinite(float(states.sum(dtype=exact)))


def guarded(batch: Batch) -> Batch:
    """The same batch, in which a token that overflows spoils none that does not see it."""

    def each(groups: tuple[StepGroup, ...]) -> tuple[StepGroup, ...]:
        packed = cast("Seq[AttentionGroup]", groups)  # paged ones need no guard
        return tuple(replace(group, guarded=True) for group in packed)

    local = {window: each(groups) for window, groups in batch.local.items()}
    return replace(batch, groups=each(batch.groups), local=local)


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """The output of a forward over a batch."""

    logits: Tensor
    """Float [batch.rows, vocab]; the next forward may overwrite them."""
    hidden: Tensor | None = None
    """The output of the tapped layers, [taps, tokens, hidden size]; None without taps. The next
    forward may overwrite it."""
    states: Tensor | None = None
    """The last layer's output, [tokens, hidden size]; None of a graph."""

    def first(self, rows: int, tokens: int) -> BatchOutput:
        """The first rows of logits, and the tapped layers' output for the first tokens."""
        hidden = None if self.hidden is None else self.hidden[:, :tokens]
        return BatchOutput(self.logits[:rows], hidden)

    def room(self, tokens: int) -> BatchOutput:
        """Tensors for the output of up to so many tokens, each with its row of logits."""
        logits = self.logits.new_empty((tokens, self.logits.shape[1]))
        if self.hidden is None:
            return BatchOutput(logits)
        taps, _, size = self.hidden.shape
        return BatchOutput(logits, self.hidden.new_empty((taps, tokens, size)))

    def copy_to(self, room: BatchOutput) -> None:
        """Write this output to the beginning of a room for it."""
        room.logits[: len(self.logits)].copy_(self.logits)
        if self.hidden is not None and room.hidden is not None:
            room.hidden[:, : self.hidden.shape[1]].copy_(self.hidden)


def joined(parts: Seq[BatchOutput]) -> BatchOutput:
    """One output of forwards one after another."""
    tapped = [part.hidden for part in parts if part.hidden is not None]
    hidden = torch.cat(tapped, dim=1) if tapped else None
    return BatchOutput(torch.cat([part.logits for part in parts]), hidden)


def make_batch(
    feeds: Seq[Feed],
    cache: TensorCache,
    group_size: int,
    dtype: torch.dtype,
    windows: Seq[int | None] = (None,),
    taps: tuple[int, ...] = (),
) -> Batch:
    """Pack feeds, prompts first, into the tensors of one forward.

    Args:
        group_size: query heads per K/V head.
        dtype: type of the attention bias, the model's.
        windows: those of the model's layers; None for layers that see the whole text.
        taps: layers whose output is wanted.
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
        for slot in table.order[feed.sequence.num_cached : feed.total]
    ]
    group = partial(attention_groups, feeds, tables, group_size, dtype, device)
    longest = max(feed.total for feed in feeds)
    local = {window: group(window) for window in windows if window and window < longest}
    groups = group(None) if len(local) < len(windows) else ()
    tokens = [token for feed in feeds for token in feed.tokens]
    flat = ([*chain.from_iterable(positions)], [*chain.from_iterable(lengths)])
    parts = (tokens, *flat, slots, rows)
    packed = integers([*chain.from_iterable(parts)], device)  # one tensor, one copy to a device
    fed, at, seen, written, logit_rows = torch.split(packed, [len(part) for part in parts])
    return Batch(fed, at, seen, written, groups, logit_rows, local=local, taps=taps)
