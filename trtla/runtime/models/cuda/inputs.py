"""The tensors of a paged forward, written from a step's feeds: one host buffer, one copy.

The buffer's layout is fixed by its `Room`, so a CUDA graph captured over it can be replayed with
the next step's feeds. Padding tokens write their keys to a block that is never read.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.batch import Batch
from trtla.runtime.models.cuda.paged_attention import HEADER, LEAST_STRETCH, PagedGroup
from trtla.runtime.sequence import Feed

_IN_WORD = 4
"""Number of path nodes in an int64."""
_ALIGNED = 2
"""Alignment of a part in int64 numbers; kernels are compiled for such addresses."""


@dataclass(frozen=True, slots=True)
class Room:
    """The capacity of a step's tensors."""

    tokens: int
    """Fed tokens of all sequences."""
    prompt_tokens: int
    """Fed tokens of prompts, exactly as many, because trees begin after them."""
    rows: int
    """Fed tokens whose logits are computed."""
    prompts: int
    """Sequences that feed a stretch of their prompt, exactly as many; they come first."""
    trees: int
    """Sequences that feed a tree."""
    longest_prompt: int
    """Most fed tokens of one prompt."""
    longest_tree: int
    """Most fed tokens of one tree."""
    blocks: int
    """Most cache blocks of one sequence."""
    context: int
    """Cached tokens of one sequence, for which its spans are chosen."""
    stretch: int = LEAST_STRETCH
    """The stretch of `PagedGroup`, the same in all steps of an executor."""
    moves: int = 0
    """Cache slots that are moved before the forward."""

    @classmethod
    def of(cls, feeds: Seq[Feed]) -> Room:
        """Return the exact room of these feeds, prompts first."""
        prompts = [feed.length for feed in feeds if feed.draft is None]
        trees = [feed.length for feed in feeds if feed.draft is not None]
        return cls(
            sum(prompts) + sum(trees),
            sum(prompts),
            sum(len(feed.rows) for feed in feeds),
            len(prompts),
            len(trees),
            max(prompts, default=0),
            max(trees, default=0),
            max(_num_blocks(feed) for feed in feeds),
            max(feed.sequence.num_cached for feed in feeds),
        )

    @property
    def path_words(self) -> int:
        """Number of int64 words of a path."""
        return -(-self.longest_tree // _IN_WORD) or 1

    @property
    def sequences(self) -> int:
        return self.prompts + self.trees


class _Parts(NamedTuple):
    """Views of the buffer's parts: arrays on the host, tensors on the device."""

    tokens: Any
    positions: Any
    lengths: Any
    slots: Any
    owners: Any
    rows: Any
    moves: Any
    paths: Any
    sequences: Any


class StepInputs:
    """The tensors of a step, which `fill` writes and a forward reads as `batch`.

    A forward that reads `batch` must have ended before the next `fill`.

    Args:
        scratch: the block that padding tokens write to.
        windows: the windows of the model's layers that are shorter than texts.
        taps: layers whose output is wanted.
    """

    def __init__(
        self,
        room: Room,
        scratch: int,
        device: torch.device,
        windows: Seq[int] = (),
        taps: tuple[int, ...] = (),
    ) -> None:
        self.room = room
        self._scratch = scratch * TOKENS_PER_BLOCK + np.arange(room.tokens) % TOKENS_PER_BLOCK
        size = _size(room)
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._arrays = _Parts(*(part.numpy() for part in _parts(self._host, room)))
        self.batch = _batch(_parts(self._device, room), room, windows, taps)
        """The input of the forward, always the same tensors."""

    def fill(self, feeds: Seq[Feed], moves: Seq[tuple[int, int]] = ()) -> Batch:
        """Write feeds, prompts first, and send them to the device without waiting."""
        tokens = rows = 0
        for index, feed in enumerate(feeds):
            self._write(index, feed, tokens, rows)
            tokens, rows = tokens + feed.length, rows + len(feed.rows)
        self._pad(len(feeds), tokens, rows)
        if self.room.moves:
            self._arrays.moves[:] = self._scratch[0]  # one that stays where it is
            self._arrays.moves[:, : len(moves)] = np.array(moves, int).reshape(-1, 2).T
        self._device.copy_(self._host, non_blocking=True)
        return self.batch

    def _write(self, index: int, feed: Feed, start: int, first_row: int) -> None:
        arrays, cached = self._arrays, feed.sequence.num_cached
        rows = slice(start, start + feed.length)
        positions = feed.positions()
        arrays.tokens[rows] = feed.tokens
        arrays.positions[rows] = positions
        arrays.lengths[rows] = feed.lengths(positions)
        blocks = np.array(feed.sequence.blocks[: _num_blocks(feed)])
        places = np.arange(cached, feed.total)
        slots = blocks[places // TOKENS_PER_BLOCK] * TOKENS_PER_BLOCK + places % TOKENS_PER_BLOCK
        arrays.slots[rows] = slots
        arrays.rows[first_row : first_row + len(feed.rows)] = np.array(feed.rows, int) + start
        if feed.draft is not None:
            paths = path_nodes(feed.draft.parents)
            arrays.paths[rows, : paths.shape[1]] = paths  # what is behind a path is not read
            arrays.owners[rows] = index - self.room.prompts
            start -= self.room.prompt_tokens
        arrays.sequences[index, :HEADER] = cached, feed.length, start
        arrays.sequences[index, HEADER : HEADER + len(blocks)] = blocks

    def _pad(self, sequences: int, tokens: int, rows: int) -> None:
        arrays = self._arrays
        arrays.tokens[tokens:] = arrays.positions[tokens:] = 0
        arrays.lengths[tokens:] = 1
        arrays.owners[tokens:] = -1
        arrays.slots[tokens:] = self._scratch[tokens:]
        arrays.rows[rows:] = 0
        arrays.sequences[sequences:, :HEADER] = 0


def _num_blocks(feed: Feed) -> int:
    return -(-feed.total // TOKENS_PER_BLOCK)


def _parts(buffer: Tensor, room: Room) -> _Parts:
    parts, at = [], 0
    for size in _sizes(room):
        parts.append(buffer[at : at + size])
        at += size + size % _ALIGNED
    width = HEADER + room.blocks
    sequences = buffer[at:].view(torch.int32)[: room.sequences * width].view(-1, width)
    paths = parts.pop().view(torch.int16).view(room.tokens, -1)
    moves = parts.pop().view(2, room.moves)
    return _Parts._make([*parts, moves, paths, sequences])


def _sizes(room: Room) -> tuple[int, ...]:
    """Return the int64 numbers of each part but the last."""
    return (room.tokens,) * 5 + (room.rows, 2 * room.moves, room.tokens * room.path_words)


def _size(room: Room) -> int:
    """Return the int64 numbers of a buffer; each holds two int32."""
    sequences = -(-room.sequences * (HEADER + room.blocks) // 2)
    return sum(size + size % _ALIGNED for size in _sizes(room)) + sequences


def _batch(parts: _Parts, room: Room, windows: Seq[int], taps: tuple[int, ...]) -> Batch:
    middle, positions = room.prompt_tokens, parts.positions
    groups = []
    if room.prompts:
        prompts, rows = parts.sequences[: room.prompts], slice(0, middle)
        groups.append(PagedGroup(rows, prompts, room.longest_prompt, room.context, positions[rows]))
    if room.trees:
        trees, rows = parts.sequences[room.prompts :], slice(middle, room.tokens)
        nodes = (positions[rows], parts.owners[rows], parts.paths[rows])
        sizes = (room.longest_tree, room.context)
        groups.append(PagedGroup(rows, trees, *sizes, *nodes, stretch=room.stretch))
    moves = parts.moves if room.moves else None
    local = {one: tuple(replace(group, window=one) for group in groups) for one in windows}
    return Batch(*parts[:4], tuple(groups), parts.rows, moves, local, taps)


@lru_cache(maxsize=512)
def path_nodes(parents: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return the path to each node of a tree, itself included, as int16 [nodes, longest]."""
    paths = [b"\0\0"]
    for node, parent in enumerate(parents, 1):
        paths.append(paths[parent] + node.to_bytes(2, "little"))
    longest = max(map(len, paths))
    joined = b"".join([path.ljust(longest, b"\0") for path in paths])
    return np.frombuffer(joined, "<i2").reshape(len(paths), -1)
