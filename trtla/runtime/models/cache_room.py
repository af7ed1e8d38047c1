"""How many blocks the K/V caches of a target and of its draft models get, in one go.

On one device all of them have room for the same number of sequences: a target that could hold more
than its draft model would decode them without drafts, and a draft model alone decodes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trtla.errors import TrtlaError
from trtla.formats.config import CheckpointConfig
from trtla.machine import available_memory
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.kv_cache import row_size

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
        """Of one sequence."""
        return -(-self.max_seq_len // TOKENS_PER_BLOCK)

    @property
    def bytes(self) -> int:
        """Of one sequence."""
        return self.blocks * self.block_bytes

    @property
    def place(self) -> tuple[str, int]:
        """The device with its number."""
        return self.device.type, self.device.index or 0


def block_bytes(config: CheckpointConfig, dtype: torch.dtype) -> int:
    """Bytes of a cache's block.

    Args:
        dtype: of the cache.
    """
    rows = 2 * config.num_hidden_layers * config.num_key_value_heads * TOKENS_PER_BLOCK
    return rows * row_size(config.head_size, dtype) * dtype.itemsize


def cache_blocks(needs: Sequence[CacheNeed], max_batch_size: int, ranks: int = 1) -> list[int]:
    """Blocks of each cache: all that the batch can need, or as many as memory allows.

    Args:
        ranks: that share this machine's memory, each with caches like these; a GPU is of one rank.

    Raises:
        TrtlaError: not even one sequence fits.
    """
    free = {need.place: _free_bytes(need.device) for need in needs}
    if ("cpu", 0) in free:
        free["cpu", 0] //= ranks
    for need in needs:
        free[need.place] -= need.scratch_bytes
    return [_blocks(need, needs, max(0, free[need.place]), max_batch_size) for need in needs]


def _blocks(need: CacheNeed, needs: Sequence[CacheNeed], free: int, max_batch_size: int) -> int:
    """Those of one cache, whose share is that of its sequences."""
    beside = [other for other in needs if other.place == need.place]
    share = free * need.bytes // sum(other.bytes for other in beside)
    affordable = share // need.block_bytes
    if affordable < need.blocks:
        raise _too_small(need, beside, affordable, max_batch_size)
    return min(affordable, need.blocks * max_batch_size)


def _too_small(
    need: CacheNeed, beside: Sequence[CacheNeed], affordable: int, max_batch_size: int
) -> TrtlaError:
    scratch = sum(other.scratch_bytes for other in beside)
    ways, taken, build = [], "", "--max-seq-len"
    if scratch:
        taken = f" beside the {scratch / 2**30:.1f} GiB that forwards take"
        build += " or --max-num-tokens"
        if max_batch_size > 1:
            ways.append(f"use a --max-batch-size below {max_batch_size}")
    if len(beside) > 1:
        taken += ", of each of its models"
        ways.append("give draft models another --draft-device")
    ways += [f"rebuild with a smaller {build}", "or use a device with more memory"]
    return TrtlaError(
        f"{need.device} has memory for {affordable * TOKENS_PER_BLOCK} cached tokens{taken}, "
        f"one sequence may need {need.max_seq_len}",
        ", ".join(ways),
    )


def _free_bytes(device: torch.device) -> int:
    """That caches and forwards may take."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading has freed is PyTorch's own until then
        return int(torch.cuda.mem_get_info(device)[0] * _CUDA_SHARE)
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES")
        free = pages * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not every system counts free pages
        free = 2**32
    return int(max(free, available_memory() or 0) * _CPU_SHARE)
