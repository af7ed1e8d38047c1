"""The small operations of a Llama layer as Triton kernels: four launches in place of thirteen.

Where an FP8 product follows, its input is rounded in the same launch; the output of attention takes
a launch of its own. What they compute is in `fused_kernels`; `layers.PlainOperations` computes the
same with PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import E4M3
from trtla.runtime.models.cuda.paged_attention import paged_problem
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.models.layers import PlainOperations

_LARGEST_HIDDEN = 16384  # what a program's registers hold
_LANE = 8  # numbers of a thread: 16 bytes of a half type
_BLOCK = 1024
_MOVED = 2048  # numbers that a program moves


def fused_problem(config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why a model cannot run on these kernels and those of attention; None: nothing is known."""
    if config.hidden_size > _LARGEST_HIDDEN:
        return f"the hidden size {config.hidden_size} is above {_LARGEST_HIDDEN}"
    return paged_problem(config.head_size, dtype, device, config.fp8_kv_cache)


class FusedOperations(PlainOperations):
    """The same with one launch each, on the current CUDA device."""

    def add_norm(
        self,
        states: Tensor,
        delta: Tensor | None,
        weight: Tensor,
        epsilon: float,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        from trtla.runtime.models.cuda import fused_kernels

        tokens, size = states.shape
        total = states if delta is None else torch.empty_like(states)
        normed = _output(states, scale)
        block = _power(size)
        fused_kernels.add_norm[(tokens,)](
            states,
            states if delta is None else delta,
            weight,
            total,
            normed,
            weight if scale is None else scale,
            epsilon,
            SIZE=size,
            BLOCK=block,
            ADD=delta is not None,
            FP8=scale is not None,
            num_warps=_warps(block, 16),
        )
        return total, _typed(normed, scale)

    def rotate_write(
        self, qkv: Tensor, rotary: tuple[Tensor, Tensor], slots: Tensor, cache: KVCache, layer: int
    ) -> Tensor:
        from trtla.runtime.models.cuda import fused_kernels

        (keys, values), scale = cache.layer(layer), cache.scale(layer)
        kv_heads, size = keys.shape[1:]
        heads = qkv.shape[1] // size - 2 * kv_heads
        queries = qkv.new_empty(len(qkv), heads, size)
        group, half = _power(heads // kv_heads), _power(size // 2)
        fused_kernels.rotate_write[(len(qkv), kv_heads)](
            qkv,
            *rotary,
            slots,
            qkv if scale is None else scale,
            queries,
            keys,
            values,
            KV_HEADS=kv_heads,
            GROUP_SIZE=heads // kv_heads,
            HALF=size // 2,
            GROUP_BLOCK=group,
            HALF_BLOCK=half,
            FP8=scale is not None,
            num_warps=_warps(group * half, 4),
        )
        return queries

    def silu_mul(self, gate: Tensor, up: Tensor, scale: Tensor | None = None) -> Tensor:
        from trtla.runtime.models.cuda import fused_kernels

        tokens, size = gate.shape
        out = _output(gate, scale)
        fused_kernels.silu_mul[(tokens, -(-size // _BLOCK))](
            gate,
            up,
            out,
            gate if scale is None else scale,
            SIZE=size,
            STRIDE=gate.stride(0),
            BLOCK=_BLOCK,
            FP8=scale is not None,
            num_warps=4,
        )
        return _typed(out, scale)

    def rounded(self, states: Tensor, scale: Tensor | None) -> Tensor:
        if scale is None:
            return states
        from trtla.runtime.models.cuda import fused_kernels

        tokens, size = states.shape
        out = _output(states, scale)
        grid = (tokens, -(-size // _BLOCK))
        fused_kernels.round_fp8[grid](states, out, scale, SIZE=size, BLOCK=_BLOCK, num_warps=4)
        return out.view(E4M3)

    def move(self, cache: KVCache, moves: Tensor) -> None:
        from trtla.runtime.models.cuda import fused_kernels

        layers, both, slots = cache.data.shape[:3]
        row = cache.data[0, 0, 0].numel()
        rows = _power(moves.shape[1])
        block = min(_power(row), max(_LANE, _MOVED // rows))
        fused_kernels.move_rows[(layers * both, -(-row // block))](
            cache.data,
            moves,
            slots * row,
            moves.shape[1],
            ROW=row,
            MOVES=rows,
            BLOCK=block,
            num_warps=_warps(rows * block, 8),
        )


def _output(like: Tensor, scale: Tensor | None) -> Tensor:
    return like.new_empty(like.shape, dtype=like.dtype if scale is None else torch.uint8)


def _typed(numbers: Tensor, scale: Tensor | None) -> Tensor:
    return numbers if scale is None else numbers.view(E4M3)


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _warps(numbers: int, most: int) -> int:
    """Warps of a program over so many numbers, a power of 2."""
    return max(1, min(most, numbers // (32 * _LANE)))
