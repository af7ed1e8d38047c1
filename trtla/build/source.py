"""Where weights come from: anything that reads rows of Hugging Face named tensors.

A Hugging Face folder and a TensorRT-LLM checkpoint of any tp and pp are both such a source, so that
converting, merging ranks and loading are one piece of code: streaming a plan's targets from a
source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from trtla.build.plan import FP8, Block, Span, Target, rank_plan, single_rank
from trtla.config import CheckpointConfig
from trtla.errors import UsageError

CHUNK_BYTES = 2 * 2**20  # small enough to stay in the processor's cache between read and write
"""How much of a tensor is in memory at a time while streaming."""

_FLOAT16_OVERFLOW = 65520.0  # the smallest number that rounds to infinity


class TensorSource(Protocol):
    """Reads rows of the tensors that `plan.source_shapes` lists."""

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop), or elements of a vector, as stored, in memory of their own.

        What the checkpoint holds in FP8 comes in FP8: only a source knows how to quantise.
        """


def torch_dtype(name: str) -> torch.dtype:
    """A checkpoint's float16, bfloat16, float32 or float8_e4m3fn as torch's dtype."""
    return {
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
        "float32": torch.float32,
        FP8: torch.float8_e4m3fn,
    }[name]


def stream(target: Target, source: TensorSource) -> Iterator[torch.Tensor]:
    """The target's rows from top to bottom, in contiguous pieces of about CHUNK_BYTES.

    Raises:
        UsageError: a value is too large for float16.
    """
    for block in target.blocks:
        for start, stop in row_spans(block.rows, block.cols[1] if block.cols else 1):
            yield _read(block, start, stop, source, torch_dtype(target.dtype))


def materialize(target: Target, source: TensorSource) -> torch.Tensor:
    """The whole target as one tensor."""
    out, row = torch.empty(target.shape, dtype=torch_dtype(target.dtype)), 0
    for piece in stream(target, source):
        if piece.shape == target.shape:
            return piece  # small tensors come in one piece, nothing to put together
        out[row : row + len(piece)] = piece
        row += len(piece)
    return out


def full_tensors(
    source: TensorSource, config: CheckpointConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the one-rank checkpoint of this model, one by one."""
    for target in rank_plan(single_rank(config), 0):
        yield target.name, materialize(target, source)


def row_spans(rows: Span, width: int) -> Iterator[Span]:
    """Stretches of rows whose whole width takes about CHUNK_BYTES in float32."""
    first, last = rows
    step = max(1, CHUNK_BYTES // (4 * width))
    for start in range(first, last, step):
        yield start, min(start + step, last)


def _read(
    block: Block, start: int, stop: int, source: TensorSource, dtype: torch.dtype
) -> torch.Tensor:
    if block.source is None:
        width = (block.cols[1] - block.cols[0],) if block.cols else ()
        return torch.zeros((stop - start, *width), dtype=dtype)
    rows = source.read(block.source, start, stop)
    part = rows[:, slice(*block.cols)] if block.cols else rows
    return _cast(part, dtype, block.source).contiguous()


def _cast(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    if dtype == torch.float16:
        _check_float16(tensor, name)
    return tensor.to(dtype)


def _check_float16(tensor: torch.Tensor, name: str) -> None:
    low, high = tensor.aminmax()
    largest = max(-low.item(), high.item())
    if largest >= _FLOAT16_OVERFLOW:
        raise UsageError(
            f"tensor {name} holds {largest:.4g}, too large for float16",
            "convert with --dtype bfloat16 or --dtype float32",
        )
