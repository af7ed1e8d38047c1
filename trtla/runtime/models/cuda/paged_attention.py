"""Launches of attention of a step's packed tokens over the pages of the cache.

It replaces `AttentionGroup` on CUDA: nothing is gathered, padded or repeated.
Tiles and splits are chosen here; `kernels` and `tree_kernels` have the Triton kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.formats.torch_tensors import E4M3
from trtla.runtime.blocks import TOKENS_PER_BLOCK

HEADER = 3
"""Number of integers before a sequence's blocks: cached tokens, fed tokens, first row."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HEAD_SIZES = (16, 32, 64, 128)
_LARGEST_HIDDEN = 16384  # what a program's registers hold
_FP8_CAPABILITY = (8, 9)  # Triton converts e4m3 from Ada on
_LEAST_TILE = 16
LARGEST_TILE = 128
"""Most rows of a program, which are tokens times query heads per K/V head."""
_LARGEST_WIDE_TILE = 32  # of float32: more do not fit into registers
_TREE_TILE = 64
"""Rows of a program for trees in 16 bits: the largest tile whose bits are known to equal those of
smaller ones."""
_NEW_TILES = (10, 0)  # from here on tiles of 64 have instructions of their own, which nobody tried
_MOST_SHARED = 32  # query heads of a K/V head
_WAVES = 4
"""Programs per multiprocessor up to which splitting a text pays."""
MOST_PARTS = 112 * 2**20
"""Most bytes of a step's parts when texts are split."""
LEAST_STRETCH = 128
"""Smallest stretch, a multiple of every block of keys."""
_STRETCHES = 32  # most of a text: joining more of them costs more than reading in longer ones


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """The sequences of one launch of attention: prompts, or trees of generation steps."""

    rows: slice
    """The group's stretch of the packed tokens."""
    sequences: Tensor
    """Cached tokens, fed tokens, first row and cache blocks, as int32 [B, HEADER + blocks].

    A sequence with 0 fed tokens is padding."""
    longest: int
    """Most fed tokens that a sequence can have."""
    context: int
    """Most expected cached tokens of a sequence; 0 means any number, without a split."""
    positions: Tensor
    """The positions of the rows, int64 [rows]."""
    owners: Tensor | None = None
    """The sequence of each row of trees, int64 [rows], -1 for padding; None for prompts."""
    paths: Tensor | None = None
    """The path to each row of trees, itself included, as offsets from the first fed token: int16
    [rows, most]."""
    stretch: int = 0
    """Length of the pieces into which trees cut a text; a fixed one keeps a row's bits the same."""
    window: int | None = None
    """Number of last tokens of its text that a row sees; None means all."""

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return the rows' attention outputs; rows of no sequence have arbitrary values."""
        if sinks is not None:
            raise ValueError("the kernels have no sinks")
        return paged_attend(queries, keys, values, self, scale)


def kernels_problem(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Return why a model cannot run on the Triton kernels, fused ones included; None if it can."""
    if config.num_experts:
        return "graphs cannot choose experts"
    if config.attention_sinks:
        return "the kernels have no sinks of attention"
    if config.hidden_size > _LARGEST_HIDDEN:
        return f"the hidden size {config.hidden_size} is above {_LARGEST_HIDDEN}"
    if device.type != "cuda":
        return f"the device is {device}"
    if find_spec("triton") is None:
        return "Triton is not installed"
    if config.fp8_kv_cache and _capability(device) < _FP8_CAPABILITY:
        return "Triton has no FP8 on this GPU"
    if config.num_attention_heads > _MOST_SHARED * config.num_key_value_heads:
        return f"more than {_MOST_SHARED} query heads share one K/V head"
    if config.head_size not in _HEAD_SIZES:
        return f"head_size is {config.head_size}, none of {', '.join(map(str, _HEAD_SIZES))}"
    return None if dtype in _DTYPES else f"there is no kernel for {dtype}"


def paged_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    group: PagedGroup,
    scale: Tensor | None = None,
    split: bool | None = None,
) -> Tensor:
    """Return the attention outputs of a group's rows, as `StepGroup.attend` does.

    Args:
        split: True if each program of trees reads single stretches of a text, which changes no
            bit; None splits if whole texts would leave multiprocessors idle.
    """
    out = queries.new_empty(len(queries), queries[0].numel())
    if scale is not None:
        keys, values = keys.view(E4M3), values.view(E4M3)
    launch = _Launch(queries, keys, values, group, scale, out)
    if group.owners is None:
        launch.prompts()
    else:
        launch.trees(group.owners, split)
    return out


@dataclass(frozen=True, slots=True)
class _Launch:
    queries: Tensor
    keys: Tensor
    values: Tensor
    group: PagedGroup
    scale: Tensor | None
    out: Tensor

    def prompts(self) -> None:
        from trtla.runtime.models.cuda.kernels import attend_prompts

        group, queries, keys = self.group, self.queries, self.keys
        tile, tiles = _tiles(group.longest * self._group_size, _largest(queries.dtype))
        attend_prompts[(tiles, keys.shape[1], len(group.sequences))](
            queries,
            keys,
            self.values,
            group.sequences,
            group.positions,
            self._scale,
            self.out,
            self._factor,
            queries.stride(0),
            keys.stride(0),
            group.sequences.stride(0),
            group.window or 0,
            BLOCK_M=tile,
            num_warps=8 if tile == LARGEST_TILE else 4,
            **self._constants,
        )

    def trees(self, owners: Tensor, split: bool | None) -> None:
        from trtla.runtime.models.cuda.tree_kernels import attend_paths, attend_trees

        group, (rows, heads, size) = self.group, self.queries.shape
        assert group.paths is not None
        tile, tiles = _tiles(group.longest * self._group_size, _tree_tile(self.queries))
        programs, kv_heads = tiles * len(group.sequences), self.keys.shape[1]
        split, slots, spans = self._cut(programs * kv_heads, split)
        parts = self.queries.new_empty((slots + 1, rows, heads, size), dtype=torch.float32)
        peaks, totals = parts.new_empty((2, slots + 1, rows, heads))
        cut = {"STRETCH": group.stretch, "SPLIT": split, **self._constants}
        attend_trees[(programs * spans, kv_heads)](
            self.queries,
            self.keys,
            self.values,
            group.sequences,
            group.positions,
            self._scale,
            parts,
            peaks,
            totals,
            self._factor,
            rows,
            slots,
            spans,
            tiles,
            self.queries.stride(0),
            self.keys.stride(0),
            group.sequences.stride(0),
            group.window or 0,
            BLOCK_M=tile,
            num_warps=4,
            **cut,
        )
        attend_paths[(rows, kv_heads)](
            self.queries,
            self.keys,
            self.values,
            group.sequences,
            owners,
            group.paths,
            group.positions,
            self._scale,
            parts,
            peaks,
            totals,
            self.out,
            self._factor,
            rows,
            slots,
            self.queries.stride(0),
            self.keys.stride(0),
            group.sequences.stride(0),
            group.paths.stride(0),
            group.window or 0,
            BLOCK_M=_tiles(self._group_size, _MOST_SHARED)[0],
            num_warps=4 if self.queries.dtype == torch.float32 else 2,
            **cut,
        )

    def _cut(self, programs: int, split: bool | None) -> tuple[bool, int, int]:
        """Return whether texts are split, the slots for stretches, and the programs per text."""
        group, (rows, heads, size) = self.group, self.queries.shape
        waves = -(-_WAVES * _processors(self.queries.device) // programs)
        slots = -(-group.context // group.stretch) or 1
        if split is None:
            fits = (slots + 1) * rows * heads * (size + 2) * 4 <= MOST_PARTS
            split = group.context > 0 and waves > 1 and fits
        return (True, slots, min(slots + 1, waves)) if split else (False, 1, 1)

    @property
    def _group_size(self) -> int:
        return self.queries.shape[1] // self.keys.shape[1]

    @property
    def _scale(self) -> Tensor:
        """The scale, or any tensor in its place if there is none."""
        return self.group.sequences if self.scale is None else self.scale

    @property
    def _factor(self) -> float:
        return math.log2(math.e) / math.sqrt(self.queries.shape[-1])

    @property
    def _constants(self) -> dict[str, Any]:
        """The constants that all attention kernels take."""
        return {
            "KV_HEADS": self.keys.shape[1],
            "GROUP_SIZE": self._group_size,
            "HEAD_SIZE": self.queries.shape[-1],
            "PAGE": TOKENS_PER_BLOCK,
            "BLOCK_N": 32 if self.queries.dtype == torch.float32 else 64,
            "SCALED": self.scale is not None,
            "WINDOWED": self.group.window is not None,
        }


def _largest(dtype: torch.dtype) -> int:
    return _LARGEST_WIDE_TILE if dtype == torch.float32 else LARGEST_TILE


def _tree_tile(queries: Tensor) -> int:
    """Return the most rows of a program that attends trees."""
    wide = queries.dtype == torch.float32 or _capability(queries.device) >= _NEW_TILES
    return _LARGEST_WIDE_TILE if wide else _TREE_TILE


def _tiles(queries: int, largest: int) -> tuple[int, int]:
    """Return the rows of a program, and the programs of a sequence with `queries` rows."""
    tile = min(largest, max(_LEAST_TILE, 1 << (max(1, queries) - 1).bit_length()))
    return tile, -(-max(1, queries) // tile)


def stretch_of(context: int) -> int:
    """Return the length of the pieces into which trees cut a text, for this longest text."""
    return max(LEAST_STRETCH, 1 << (-(-max(1, context) // _STRETCHES) - 1).bit_length())


@lru_cache(maxsize=16)
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
