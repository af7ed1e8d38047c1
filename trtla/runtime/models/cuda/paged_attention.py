"""Attention of a step's packed tokens over the pages of the cache: the Triton kernels, launched.

It replaces `AttentionGroup` on CUDA: nothing is gathered, padded or repeated.
Tiles and splits are chosen here; what the kernels compute is in `kernels`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.formats.torch_tensors import E4M3
from trtla.runtime.blocks import TOKENS_PER_BLOCK

HEADER = 3
"""Integers of a sequence before its blocks: cached tokens, fed tokens, first row."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HEAD_SIZES = (16, 32, 64, 128)
_LARGEST_HIDDEN = 16384  # what a program's registers hold
_FP8_CAPABILITY = (8, 9)  # Triton converts e4m3 from Ada on
_LEAST_TILE = 16
LARGEST_TILE = 128
"""Most rows of a program, queries times heads: a sequence of so many tokens fills one."""
_LARGEST_WIDE_TILE = 32  # of float32: more do not fit into registers
_MAX_SPLITS = 64
_KEYS_A_SPLIT = 128  # with fewer, bringing the splits together costs more than it gains


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """Sequences that are attended in one launch: prompts, or trees of generation steps."""

    rows: slice
    """The group's stretch of the packed tokens."""
    sequences: Tensor
    """int32 [B, HEADER + blocks]: cached tokens, fed tokens, first row in the group, cache blocks.

    A sequence with 0 fed tokens is padding."""
    masks: Tensor | None
    """Bit i % 64 of word i // 64 is set where a row sees fed token i of its sequence, which is
    itself or one before: int64 [rows, words]. None: it sees all those (prompts)."""
    longest: int
    """Most fed tokens that a sequence can have."""
    context: int
    """Most cached tokens that a sequence is expected to have: for more it is not split further."""
    positions: Tensor
    """Of the rows, int64 [rows]."""
    window: int | None = None
    """Tokens that a row sees of its text, the last ones; None: all."""

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: Tensor | None = None
    ) -> Tensor:
        """Rows of no sequence hold anything."""
        return paged_attend(queries, keys, values, self, scale)


def kernels_problem(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why a model cannot run on Triton kernels, these and the fused ones; None: it may."""
    if config.hidden_size > _LARGEST_HIDDEN:
        return f"the hidden size {config.hidden_size} is above {_LARGEST_HIDDEN}"
    if device.type != "cuda":
        return f"the device is {device}"
    if find_spec("triton") is None:
        return "Triton is not installed"
    if config.fp8_kv_cache and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        return "Triton has no FP8 on this GPU"
    if config.head_size not in _HEAD_SIZES:
        return f"head_size is {config.head_size}, none of {', '.join(map(str, _HEAD_SIZES))}"
    return None if dtype in _DTYPES else f"there is no kernel for {dtype}"


def paged_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    group: PagedGroup,
    scale: Tensor | None = None,
    splits: int | None = None,
) -> Tensor:
    """Attention outputs of a group's rows, as of `StepGroup.attend`.

    Args:
        splits: into how many parts a context is cut, a power of 2; None: by the size of the grid.
    """
    from trtla.runtime.models.cuda import kernels

    (rows, heads, size), kv_heads = queries.shape, keys.shape[1]
    tile, tiles = _tiles(group.longest * heads // kv_heads, queries.dtype)
    if splits is None:
        splits = _splits(group, tile, tiles * kv_heads, queries.device)
    parts = logs = out = queries.new_empty(rows, heads * size)
    if splits > 1:
        parts = queries.new_empty((splits, rows, heads, size), dtype=torch.float32)
        logs = queries.new_empty((splits, rows, heads), dtype=torch.float32)
    unused = group.sequences
    kernels.attend_pages[(tiles, kv_heads * splits, len(group.sequences))](
        queries,
        keys if scale is None else keys.view(E4M3),
        values if scale is None else values.view(E4M3),
        group.sequences,
        unused if group.masks is None else group.masks,
        group.positions,
        unused if scale is None else scale,
        parts,
        logs,
        math.log2(math.e) / math.sqrt(size),
        rows,
        queries.stride(0),
        keys.stride(0),
        group.sequences.stride(0),
        1 if group.masks is None else group.masks.shape[1],
        group.window or 0,
        KV_HEADS=kv_heads,
        GROUP_SIZE=heads // kv_heads,
        HEAD_SIZE=size,
        PAGE=TOKENS_PER_BLOCK,
        BLOCK_M=tile,
        BLOCK_N=32 if queries.dtype == torch.float32 else 64,
        SPLITS=splits,
        CAUSAL=group.masks is None,
        SCALED=scale is not None,
        WINDOWED=group.window is not None,
        num_warps=8 if tile == LARGEST_TILE else 4,
    )
    if splits > 1:
        stride = rows * heads
        kernels.combine[(stride,)](
            parts, logs, out, stride, HEAD_SIZE=size, SPLITS=splits, num_warps=4
        )
    return out


def _tiles(longest: int, dtype: torch.dtype) -> tuple[int, int]:
    """Rows of a program, and programs of a sequence, whose queries times heads are the longest."""
    needed = max(1, longest)
    largest = _LARGEST_WIDE_TILE if dtype == torch.float32 else LARGEST_TILE
    tile = min(largest, max(_LEAST_TILE, 1 << (needed - 1).bit_length()))
    return tile, -(-needed // tile)


def _splits(group: PagedGroup, tile: int, programs: int, device: torch.device) -> int:
    if group.masks is None:
        return 1
    room = (1 if tile == LARGEST_TILE else 2) * _processors(device)
    context = min(group.context, group.window or group.context)
    return choose_splits(programs * len(group.sequences), context, room)


def choose_splits(programs: int, context: int, room: int) -> int:
    """Parts of a context, a power of 2: enough to fill the device, none too short.

    Args:
        programs: that there are without splits.
        room: programs that the device runs at once: of the largest tile one a processor.
    """
    wanted = min(_MAX_SPLITS, room // max(1, programs), context // _KEYS_A_SPLIT)
    return 1 << (wanted.bit_length() - 1) if wanted > 1 else 1


@lru_cache(maxsize=16)
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
