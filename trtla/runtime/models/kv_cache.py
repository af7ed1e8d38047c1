"""The paged K/V cache: the blocks that sequences own, and the number that memory has room for.

A sequence reserves all the blocks it can ever need when it is admitted (TensorRT-LLM's
GUARANTEED_NO_EVICT), so a running sequence is never evicted and a draft always finds its slots.
Keys and values themselves are in `cpu.cache` or, for PyTorch's operations, in `tensor_cache`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from trtla.errors import TrtlaError, at_start, flag_name, named
from trtla.formats.config import CheckpointConfig
from trtla.formats.gguf.folder import model_name
from trtla.formats.tensors import numpy_dtype
from trtla.machine import available_memory
from trtla.runtime.arrays import address
from trtla.runtime.blocks import TOKENS_PER_BLOCK, BlockPool
from trtla.runtime.device import Device


@dataclass(frozen=True)
class SlotTable:
    """The slots of a sequence in the cache: entry i is that of its i-th token."""

    order: Sequence[int]
    first: int | None
    """The first slot when all are consecutive, else None."""

    @cached_property
    def slots(self) -> np.ndarray:
        """The same as `order`, int64 [capacity]; paged forwards need none."""
        return np.asarray(self.order, np.int64)

    @cached_property
    def address(self) -> int:
        return address(self.slots)

    @classmethod
    def of(cls, blocks: tuple[int, ...]) -> SlotTable:
        first, size = blocks[0] * TOKENS_PER_BLOCK, TOKENS_PER_BLOCK
        if list(blocks) == list(range(blocks[0], blocks[0] + len(blocks))):
            return cls(range(first, first + len(blocks) * size), first)
        slots = np.add.outer(np.array(blocks, np.int64) * size, np.arange(size))
        return cls(array("q", slots.tobytes()), None)


_KEPT_TABLES = 256  # more than most batches have texts; each takes 8 bytes a token
SCALE_BYTES = 4
"""Bytes of the scale of a row of int8 numbers, a float32."""


def row_bytes(head_size: int, cache_type: str) -> int:
    """Bytes of a token's keys or values of one head; of int8 also those of their scale."""
    scale = SCALE_BYTES if cache_type == "int8" else 0
    return head_size * numpy_dtype(cache_type).itemsize + scale


class KVCache(ABC):
    """Keys and values of all layers in slots, of which sequences own blocks.

    Args:
        num_blocks: of `TOKENS_PER_BLOCK` slots.
        device: that has them.
    """

    def __init__(self, num_blocks: int, device: Device) -> None:
        self.pool, self.device = BlockPool(num_blocks), device
        self.num_slots = num_blocks * TOKENS_PER_BLOCK
        self.table = lru_cache(maxsize=_KEPT_TABLES)(SlotTable.of)
        """The slot table of a sequence's blocks."""
        self._moves: list[tuple[int, int]] = []
        """Source and target slots of rows that the next forward moves before it reads any."""

    def synchronize(self) -> None:  # noqa: B027
        """Wait until the device is idle, so that timings include the kernels."""

    @abstractmethod
    def move_now(self) -> None:
        """Do the moves of `move_later`; the slots may overlap."""

    def move_later(self, moves: Iterable[tuple[int, int]]) -> None:
        """Have accepted drafts' keys and values copied by the next forward, before it reads any."""
        self._moves += moves

    def take_moves(self) -> list[tuple[int, int]]:
        moves, self._moves = self._moves, []
        return moves


_CUDA_SHARE, _CPU_SHARE = 0.9, 0.5  # of the memory that is free once the weights are loaded


Place = tuple[str, int]
"""Type and index of a device."""


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """The memory that a loaded model needs on its device, beside its weights."""

    device: Device
    block_bytes: int
    """Bytes of a block of its cache."""
    max_seq_len: int
    """Most tokens that a sequence has in the cache."""
    scratch_bytes: int = 0
    """Bytes that its forwards take, as `Model.scratch_bytes`."""
    usual_seq_len: int | None = None
    """Tokens that each sequence of a full batch has room for; None: the most."""

    @property
    def blocks(self) -> int:
        return -(-self.max_seq_len // TOKENS_PER_BLOCK)

    def batch_blocks(self, max_batch_size: int) -> int:
        """The blocks of a full batch, or of the longest sequence where that needs more."""
        usual = -(-(self.usual_seq_len or self.max_seq_len) // TOKENS_PER_BLOCK)
        return max(self.blocks, usual * max_batch_size)

    @property
    def bytes(self) -> int:
        return self.blocks * self.block_bytes

    @property
    def place(self) -> Place:
        return self.device.type, self.device.index or 0


def block_bytes(config: CheckpointConfig, cache_type: str) -> int:
    """Bytes of a cache's block."""
    rows = 2 * config.num_hidden_layers * config.num_key_value_heads * TOKENS_PER_BLOCK
    return rows * row_bytes(config.head_size, cache_type)


def cache_blocks(
    needs: Sequence[CacheNeed], max_batch_size: int, free: Mapping[Place, int] | None = None
) -> list[int]:
    """Blocks of each cache: all that the batch can need, or as many as memory allows.

    Args:
        free: an earlier result of `free_bytes`; None: it is called now.
    """
    counts = []
    affordables = _affordable(needs, free_bytes(needs) if free is None else free)
    for need, affordable in zip(needs, affordables, strict=True):
        if affordable < need.blocks:
            raise _too_small(need, needs, affordable, max_batch_size)
        counts.append(min(affordable, need.batch_blocks(max_batch_size)))
    return counts


def free_bytes(needs: Sequence[CacheNeed], ranks: int = 1) -> dict[Place, int]:
    """The bytes of each device that caches and forwards may take.

    Args:
        ranks: that share this machine's memory, each with caches like these; a GPU is of one rank.
    """
    free = {need.place: _free_bytes(need.device) for need in needs}
    if ("cpu", 0) in free:
        free["cpu", 0] //= ranks
    return free


def longest_fit(
    needs: Callable[[int], Sequence[CacheNeed]], most: int, free: Mapping[Place, int]
) -> int:
    """Tokens of the longest text that all caches have room for, up to so many; 0: of none.

    Args:
        needs: those of texts of so many tokens.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        tried = needs(middle)
        fits = all(map(int.__le__, (need.blocks for need in tried), _affordable(tried, free)))
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _affordable(needs: Sequence[CacheNeed], free: Mapping[Place, int]) -> list[int]:
    """Blocks that each cache can have beside the others on its device."""
    room, sizes = dict(free), dict.fromkeys(free, 0)
    for need in needs:
        room[need.place] -= need.scratch_bytes
        sizes[need.place] += need.bytes
    shares = (max(0, room[need.place]) * need.bytes // sizes[need.place] for need in needs)
    return [share // need.block_bytes for share, need in zip(shares, needs, strict=True)]


def _too_small(
    need: CacheNeed, needs: Sequence[CacheNeed], affordable: int, max_batch_size: int
) -> TrtlaError:
    neighbours = [neighbour for neighbour in needs if neighbour.place == need.place]
    scratch = sum(neighbour.scratch_bytes for neighbour in neighbours)
    rebuilt = need.usual_seq_len is None
    spell = flag_name if rebuilt else at_start
    ways, reserved, smaller = [], "", spell("max_seq_len")
    if scratch:
        reserved = f" beside the {scratch / 2**30:.1f} GiB that forwards take"
        smaller += f" or {spell('max_num_tokens')}"
        if max_batch_size > 1:
            ways.append(f"use a {named('max_batch_size')} below {max_batch_size}")
    if len(neighbours) > 1:
        reserved += ", of each of its models"
        ways.append(f"give draft models another {named('draft_device')}")
    remedy = "rebuild with" if rebuilt else "open the model with"
    ways += [f"{remedy} a smaller {smaller}", "or use a device with more memory"]
    return TrtlaError(
        f"{need.device} has memory for {affordable * TOKENS_PER_BLOCK} cached tokens{reserved}, "
        f"one sequence may need {need.max_seq_len}",
        ", ".join(ways),
    )


def _free_bytes(device: Device) -> int:
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()  # until then PyTorch keeps the memory that loading has freed
        return int(torch.cuda.mem_get_info(str(device))[0] * _CUDA_SHARE)
    return int(_free_memory() * _CPU_SHARE)


def _free_memory(*, swap: bool = False) -> int:
    available = available_memory(swap=swap)
    if available is not None:
        return available
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not every system counts free pages
        return 2**33


_LEAST_RESERVE = 100 * 2**20


def check_memory(
    folder: str, weights: int, cache: int, ranks: int = 1, hint: str | None = None
) -> None:
    """Refuse a model that memory has no room for, before its weights are read.

    Args:
        folder: of the model, or of a GGUF file in the user's cache.
        weights: bytes that they take, of this process.
        cache: of the keys and values of one text; beside them as much is left to all else.
        ranks: processes on this machine that load as much.
        hint: in place of that for a model.
    """
    reserve, free = max(cache, _LEAST_RESERVE), _free_memory(swap=True) // ranks
    if (needed := weights + cache + reserve) <= free:
        return
    parts = [f"{size / 2**30:.2f}" for size in (needed, free, weights, cache, reserve)]
    raise TrtlaError(
        "{} needs {} GiB of memory and {} are free: it takes {} for weights, {} for keys and "
        "values, {} for all else".format(model_name(folder), *parts),
        hint
        or "use a smaller file or one of fewer bits, such as Q4_0, a smaller "
        f"{named('max_seq_len')}, or a "
        "machine with more memory",
    )
