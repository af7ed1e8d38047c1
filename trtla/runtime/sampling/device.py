"""A step's choices on a CUDA device: one launch, or two where filters cut, for all of its rows.

What the kernels compute is in `device_kernels`; the texts are those of `draw`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from trtla.errors import first_line
from trtla.runtime.sampling.draw import argmax, draw_at
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.sampling.predict import Draw, StepSampler, drawn
from trtla.settings.sampling import SamplingParams, draws_by

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How rows are cut; powers of 2. A row's sums depend on these and on its size alone."""

    chunk: int = 2048
    """Least logits of a program; more where the chunks of a row would be too many."""
    chunks: int = 128
    """Most chunks of a row."""
    block: int = 4096
    """Logits that a filter reads at a time."""

    def of(self, size: int) -> tuple[int, int]:
        """(logits of a chunk, chunks) of a row of this many logits."""
        chunk = max(self.chunk, 1 << (-(-size // self.chunks) - 1).bit_length())
        return chunk, -(-size // chunk)


_TILES = Tiles()
_KNOWN = ("temperature", "top_k", "top_p")
"""What the kernels draw by; with other filters rows are drawn on the host."""
_CHUNK_WARPS, _BLOCK_WARPS = 8, 16


class _Buffers:
    def __init__(self, rows: int, chunks: int, device: torch.device) -> None:
        from trtla.runtime.sampling.device_kernels import FIELDS, PARTS

        self.rows, self.chunks = rows, chunks
        pinned = device.type == "cuda"
        self.host = torch.empty(rows, FIELDS, dtype=torch.int64, pin_memory=pinned)
        self.numbers = self.host.numpy()
        self.jobs = torch.empty(rows, FIELDS, dtype=torch.int64, device=device)
        self.parts = torch.empty(rows, chunks + 1, PARTS, dtype=torch.float64, device=device)
        self.arrived = torch.zeros(rows, dtype=torch.int32, device=device)
        self.out = torch.empty(rows, 2, dtype=torch.int32, device=device)


class DeviceSampler(StepSampler):
    """A `StepSampler` by a Triton kernel, of logits on one device and for one caller at a time."""

    def __init__(self, tiles: Tiles = _TILES) -> None:
        self._tiles = tiles
        self._buffers: _Buffers | None = None

    def choose(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[int]]:
        """The argmax of every row of [rows, vocab], and the token of each draw."""
        if not len(logits):
            return [], []
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        on_cuda = logits.device.type == "cuda"
        with torch.cuda.device(logits.device) if on_cuda else contextlib.nullcontext():
            found: list[list[int]] = self._launched(logits, draws).tolist()
        tokens = [found[draw.row][1] for draw in draws]
        cut = [i for i, one in enumerate(draws) if not draws_by(_KNOWN, one.params.draw_settings)]
        if cut:
            exact = drawn([draws[i] for i in cut], on_host(logits))
            for place, token in zip(cut, exact, strict=True):
                tokens[place] = token
        return [first for first, _ in found], tokens

    def _launched(self, logits: Tensor, draws: Sequence[Draw]) -> Tensor:
        """Argmax and draw of each row, int32 [rows, 2]; no draw where none is asked for."""
        from trtla.runtime.sampling.device_kernels import choose_rows, filter_rows

        (rows, size), tiles = logits.shape, self._tiles
        chunk, chunks = tiles.of(size)
        own = self._room(rows, chunks, logits.device)
        _write(own.numbers[:rows], size, draws)
        own.jobs[:rows].copy_(own.host[:rows], non_blocking=True)
        choose_rows[(rows, chunks)](
            logits,
            own.jobs,
            own.parts,
            own.arrived,
            own.out,
            logits.stride(0),
            size,
            CHUNK=chunk,
            CHUNKS=tiles.chunks,
            DRAWS=bool(draws),
            num_warps=_CHUNK_WARPS,
        )
        if any(draw.params.top_p < 1.0 or 0 < draw.params.top_k < size for draw in draws):
            filter_rows[(rows,)](
                logits,
                own.jobs,
                own.parts,
                own.out,
                logits.stride(0),
                size,
                chunks,
                BLOCK=tiles.block,
                num_warps=_BLOCK_WARPS,
            )
        return own.out[:rows]

    def _room(self, rows: int, chunks: int, device: torch.device) -> _Buffers:
        own = self._buffers
        if own is None or own.rows < rows or own.chunks < chunks:
            own = self._buffers = _Buffers(1 << (rows - 1).bit_length(), chunks, device)
        return own


def _write(numbers: np.ndarray, size: int, draws: Sequence[Draw]) -> None:
    """The rows' jobs: those that are not drawn have temperature 0."""
    settings = numbers[:, 2:].view(np.float64)
    numbers[:, :2], settings[:] = (0, size), (0.0, 1.0)
    for row, params, noise in draws:
        numbers[row, :2] = int(noise * 2.0**53), params.top_k or size
        settings[row] = params.temperature, params.top_p


def device_sampler(device: torch.device) -> DeviceSampler | None:
    """A model's sampler for its device; None where PyTorch's operations have to choose."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    found = self_test(device)
    if found is not None:
        _log.warning("tokens are chosen on the host, which is slower: %s", found)
        return None
    return DeviceSampler()


@lru_cache(maxsize=8)
def self_test(device: torch.device) -> str | None:
    """What is wrong with the kernel on this device, compared with `draw`; None: nothing is."""
    try:
        return difference(device, DeviceSampler())
    except Exception as error:  # of many types: no compiler, a driver that refuses, no memory
        return f"{type(error).__name__}: {first_line(error)}"


_SETTINGS = [
    SamplingParams(temperature=heat, top_k=top_k, top_p=top_p)
    for heat, top_k, top_p in ((0.3, 0, 1.0), (1.5, 40, 1.0), (0.3, 0, 0.8), (1.5, 40, 0.6))
]


def difference(device: torch.device, sampler: StepSampler, size: int = 5008) -> str | None:
    """Where a small step's choices are not those of `draw`: the first such row."""
    example, draws = _example(device, size)
    for logits in (example, example.flip(1)):  # what the first call leaves behind, the second finds
        numbers = on_host(logits)
        greedy = argmax(numbers)
        drawn = [draw_at(numbers[d.row : d.row + 1], d.params, [d.noise])[0] for d in draws]
        for right, got in zip((greedy, drawn), sampler.choose(logits, draws), strict=True):
            for row, (token, other) in enumerate(zip(right, got, strict=True)):
                if token != other:
                    name = "argmax" if right is greedy else "draw"
                    return f"the {name} of row {row} is {other}, and should be {token}"
        if sampler.choose(logits, ())[0] != greedy:
            return "the argmax of a step without draws is wrong"
    return None


def _example(device: torch.device, size: int) -> tuple[Tensor, list[Draw]]:
    """Rows with many equal logits, and some that are no answer; a draw of every one."""
    settings = [*_SETTINGS, *_SETTINGS[-3:]]
    numbers = torch.randn((len(settings), size), generator=torch.Generator().manual_seed(0))
    logits = numbers.mul_(24.0).round_().div_(8.0)
    logits[-3:, 1::2] = float("-inf")
    logits[-1, size // 2], logits[-2, 0] = float("nan"), float("inf")
    draws = [Draw(row, params, uniform(7, row)) for row, params in enumerate(settings)]
    return logits.to(device), draws
