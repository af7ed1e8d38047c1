"""The paged K/V cache: the blocks that sequences own (integers), and the keys and values (tensors).

A sequence reserves all the blocks it can ever need when it is admitted (TensorRT-LLM's
GUARANTEED_NO_EVICT), so a running sequence is never evicted and a draft always finds its slots.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from trtla.errors import TrtlaError
from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import quantize
from trtla.machine import available_memory
from trtla.runtime.blocks import TOKENS_PER_BLOCK, BlockPool


@dataclass(frozen=True)
class SlotTable:
    """Where a sequence lies in the cache: entry i is the slot of its i-th token."""

    order: Sequence[int]
    first: int | None
    """The first slot when all are consecutive, else None."""
    device: torch.device

    @cached_property
    def slots(self) -> Tensor:
        """The same as `order`, int64 [capacity] on the cache's device; paged forwards need none."""
        return torch.tensor(self.order, dtype=torch.int64).to(self.device)

    @classmethod
    def of(cls, blocks: tuple[int, ...], device: torch.device) -> SlotTable:
        consecutive = list(blocks) == list(range(blocks[0], blocks[0] + len(blocks)))
        first, size = blocks[0] * TOKENS_PER_BLOCK, TOKENS_PER_BLOCK
        order: Sequence[int] = range(first, first + len(blocks) * size)
        if not consecutive:
            order = [slot for b in blocks for slot in range(b * size, (b + 1) * size)]
        return cls(order, first if consecutive else None, device)


SCALE_BYTES = 4
"""Of a row of int8 numbers: the float32 that they are multiplied with."""


def row_size(head_size: int, dtype: torch.dtype) -> int:
    """Elements of a token's keys or values of one head: of int8 also the bytes of their scale."""
    return head_size + (SCALE_BYTES if dtype == torch.int8 else 0)


class KVCache:
    """Keys and values of all layers, [layers, 2, slots, kv_heads, row_size].

    Those of int8 are rounded by the compiled forward alone: each row holds its own scale behind its
    numbers, and is moved as a whole.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        slots = num_blocks * TOKENS_PER_BLOCK
        shape = (num_layers, 2, slots, num_kv_heads, row_size(head_size, dtype))
        self.data = torch.empty(shape, dtype=dtype, device=device)
        self._layers = [(layer[0], layer[1]) for layer in self.data]
        self.addresses = array("Q", (part.data_ptr() for pair in self._layers for part in pair))
        """Where each layer's keys and values begin, as a C function takes them."""
        self.table = lru_cache(maxsize=1024)(lambda blocks: SlotTable.of(blocks, device))
        """The slot table of a sequence's blocks."""
        self._moves: list[tuple[int, int]] = []
        """Slots from which and to which the next forward moves rows before it reads any."""

    @property
    def device(self) -> torch.device:
        return self.data.device

    def synchronize(self) -> None:
        """Wait until the device has done what it was given, so that timings include the kernels."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store fed tokens' keys and values [tokens, kv_heads, head_size] at slots [tokens]."""
        cached_keys, cached_values = self._layers[layer]
        cached_keys.index_copy_(0, slots, keys)
        cached_values.index_copy_(0, slots, values)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [slots, kv_heads, head_size]."""
        return self._layers[layer]

    def scale(self, layer: int) -> Tensor | None:
        """What stored keys and values of a layer are to be multiplied with; None: nothing."""
        return None

    def claim(self) -> None:
        """Take all of the memory now, not block by block as they are first used."""
        if self.device.type == "cpu":
            self.data.view(torch.uint8).view(-1)[:: mmap.PAGESIZE].bitwise_or_(0)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy keys and values to other slots, now; the two may overlap."""
        self.data.index_copy_(2, target, self.data.index_select(2, source))

    def move_later(self, moves: Iterable[tuple[int, int]]) -> None:
        """Have accepted drafts' keys and values copied by the next forward, before it reads any."""
        self._moves += moves

    def take_moves(self) -> list[tuple[int, int]]:
        moves, self._moves = self._moves, []
        return moves

    def move_now(self) -> None:
        if self._moves:
            slots = torch.tensor(self.take_moves())
            if self.device.type == "cuda":  # from pinned memory nobody waits for the copy
                slots = slots.pin_memory()
            self.move(*slots.to(self.device, non_blocking=True).unbind(1))


class Fp8KVCache(KVCache):
    """Keys and values in FP8, rounded when they are written, with one scale a layer.

    The bytes are kept as integers: PyTorch's index operations know no float8. `layer` gives these.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        num_blocks: int,
        scales: Sequence[float],
        device: torch.device,
    ) -> None:
        super().__init__(num_layers, num_kv_heads, head_size, num_blocks, torch.uint8, device)
        self._scales = torch.tensor(scales, dtype=torch.float32, device=device)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        scale = self._scales[layer]
        numbers = (quantize(part, scale).view(torch.uint8) for part in (keys, values))
        super().write(layer, slots, *numbers)

    def scale(self, layer: int) -> Tensor | None:
        return self._scales[layer]


_CUDA_SHARE, _CPU_SHARE = 0.9, 0.5  # of the memory that is free once the weights are loaded


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What a loaded model needs of its device, beside its weights."""

    device: torch.device
    block_bytes: int
    """Of a block of its cache."""
    max_seq_len: int
    """Most tokens that a sequence has in the cache."""
    scratch_bytes: int = 0
    """Of its forwards, as `Model.scratch_bytes`."""

    @property
    def blocks(self) -> int:
        return -(-self.max_seq_len // TOKENS_PER_BLOCK)

    @property
    def bytes(self) -> int:
        return self.blocks * self.block_bytes

    @property
    def place(self) -> tuple[str, int]:
        return self.device.type, self.device.index or 0


def block_bytes(config: CheckpointConfig, dtype: torch.dtype) -> int:
    """Bytes of a cache's block."""
    rows = 2 * config.num_hidden_layers * config.num_key_value_heads * TOKENS_PER_BLOCK
    return rows * row_size(config.head_size, dtype) * dtype.itemsize


def cache_blocks(needs: Sequence[CacheNeed], max_batch_size: int, ranks: int = 1) -> list[int]:
    """Blocks of each cache: all that the batch can need, or as many as memory allows.

    Args:
        ranks: that share this machine's memory, each with caches like these; a GPU is of one rank.
    """
    free = {need.place: _free_bytes(need.device) for need in needs}
    if ("cpu", 0) in free:
        free["cpu", 0] //= ranks
    for need in needs:
        free[need.place] -= need.scratch_bytes
    return [_blocks(need, needs, max(0, free[need.place]), max_batch_size) for need in needs]


def _blocks(need: CacheNeed, needs: Sequence[CacheNeed], free: int, max_batch_size: int) -> int:
    neighbours = [other for other in needs if other.place == need.place]
    share = free * need.bytes // sum(other.bytes for other in neighbours)
    affordable = share // need.block_bytes
    if affordable < need.blocks:
        raise _too_small(need, neighbours, affordable, max_batch_size)
    return min(affordable, need.blocks * max_batch_size)


def _too_small(
    need: CacheNeed, neighbours: Sequence[CacheNeed], affordable: int, max_batch_size: int
) -> TrtlaError:
    scratch = sum(other.scratch_bytes for other in neighbours)
    ways, taken, build = [], "", "--max-seq-len"
    if scratch:
        taken = f" beside the {scratch / 2**30:.1f} GiB that forwards take"
        build += " or --max-num-tokens"
        if max_batch_size > 1:
            ways.append(f"use a --max-batch-size below {max_batch_size}")
    if len(neighbours) > 1:
        taken += ", of each of its models"
        ways.append("give draft models another --draft-device")
    ways += [f"rebuild with a smaller {build}", "or use a device with more memory"]
    return TrtlaError(
        f"{need.device} has memory for {affordable * TOKENS_PER_BLOCK} cached tokens{taken}, "
        f"one sequence may need {need.max_seq_len}",
        ", ".join(ways),
    )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading has freed is PyTorch's own until then
        return int(torch.cuda.mem_get_info(device)[0] * _CUDA_SHARE)
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES")
        free = pages * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not every system counts free pages
        free = 2**32
    return int(max(free, available_memory() or 0) * _CPU_SHARE)
