"""Attention of a step's packed tokens over the pages of the cache: the Triton kernels, launched.

It replaces `AttentionGroup` on CUDA: nothing is gathered, padded or repeated.
Tiles and splits are chosen here; what the kernels compute is in `kernels` and `tree_kernels`.
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
"""Integers of a sequence before its blocks: cached tokens, fed tokens, first row."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HEAD_SIZES = (16, 32, 64, 128)
_LARGEST_HIDDEN = 16384  # what a program's registers hold
_FP8_CAPABILITY = (8, 9)  # Triton converts e4m3 from Ada on
_LEAST_TILE = 16
LARGEST_TILE = 128
"""Most rows of a program, queries times heads: a sequence of so many tokens fills one."""
_LARGEST_WIDE_TILE = 32  # of float32: more do not fit into registers
_TREE_TILE = 64
"""Of trees in 16 bits: the largest that is sure to be multiplied with the bits of smaller ones."""
_NEW_TILES = (10, 0)  # from here on tiles of 64 have instructions of their own, which nobody tried
_MOST_SHARED = 32  # query heads of a K/V head
_WAVES = 4
"""Programs for each processor that are worth cutting a text for."""
MOST_PARTS = 112 * 2**20
"""Bytes of the parts of a step whose texts are cut."""
LEAST_STRETCH = 128
"""A multiple of every block of keys."""
_STRETCHES = 32  # most of a text: joining more of them costs more than reading in longer ones


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """Sequences that are attended in one launch: prompts, or trees of generation steps."""

    rows: slice
    """The group's stretch of the packed tokens."""
    sequences: Tensor
    """int32 [B, HEADER + blocks]: cached tokens, fed tokens, first row in the group, cache blocks.

    A sequence with 0 fed tokens is padding."""
    longest: int
    """Most fed tokens that a sequence can have."""
    context: int
    """Most cached tokens that a sequence is expected to have; 0: any number, which is not split."""
    positions: Tensor
    """Of the rows, int64 [rows]."""
    owners: Tensor | None = None
    """The sequence of each row of trees, int64 [rows]; -1 of padding. None: these are prompts."""
    paths: Tensor | None = None
    """The fed tokens on the way to each row of trees, by their distance from the first one, and
    itself: int16 [rows, most]."""
    stretch: int = 0
    """Tokens of a text at whose multiples trees cut it: what keeps a row's bits the same."""
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
    """Attention outputs of a group's rows, as of `StepGroup.attend`.

    Args:
        split: whether programs of trees read single stretches of a text, which changes no bit;
            None: where whole texts would leave processors without work.
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
        """Whether texts are cut, slots for their stretches, and programs that share a text."""
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
        """Some tensor where there is none."""
        return self.group.sequences if self.scale is None else self.scale

    @property
    def _factor(self) -> float:
        return math.log2(math.e) / math.sqrt(self.queries.shape[-1])

    @property
    def _constants(self) -> dict[str, Any]:
        """Of all kernels of attention."""
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
    """Most rows of a program that attends trees."""
    wide = queries.dtype == torch.float32 or _capability(queries.device) >= _NEW_TILES
    return _LARGEST_WIDE_TILE if wide else _TREE_TILE


def _tiles(queries: int, largest: int) -> tuple[int, int]:
    """Rows of a program, and programs of a sequence that feeds so many tokens times heads."""
    tile = min(largest, max(_LEAST_TILE, 1 << (max(1, queries) - 1).bit_length()))
    return tile, -(-max(1, queries) // tile)


def stretch_of(context: int) -> int:
    """Tokens of a text at whose multiples trees cut it, by the longest text that there may be."""
    return max(LEAST_STRETCH, 1 << (-(-max(1, context) // _STRETCHES) - 1).bit_length())


@lru_cache(maxsize=16)
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
