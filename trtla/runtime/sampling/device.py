"""A step's choices on a CUDA device: one launch, or two where filters cut, for all of its rows.

The kernels are in `device_kernels`; the chosen tokens are those of `draw`.
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
from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sampling.draw import argmax, draw_at
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.sampling.predict import Draw, StepSampler, drawn
from trtla.settings.sampling import SamplingParams, draws_by

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of a row's parts, powers of 2. A row's sums depend on these and on its size alone."""

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
"""Settings that the kernels know; rows with others are drawn on the host."""
_CHUNK_WARPS, _BLOCK_WARPS = 8, 16
_RANKED = 2048
"""Logits that are ranked at a time."""


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
            choices: list[list[int]] = self._launched(logits, draws).tolist()
        tokens = [choices[draw.row][1] for draw in draws]
        cut = [i for i, draw in enumerate(draws) if not draws_by(_KNOWN, draw.params.draw_settings)]
        if cut:
            exact = drawn([draws[i] for i in cut], on_host(logits))
            for index, token in zip(cut, exact, strict=True):
                tokens[index] = token
        return [first for first, _ in choices], tokens

    def top_rows(
        self, logits: Tensor, rows: Sequence[int], count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As of `RowSampler`. One copy brings both to the host."""
        wanted = logits if len(rows) == len(logits) else logits[list(rows)]
        ids, logs = _ranked(wanted.float(), count)
        packed = torch.stack((ids.int().view(torch.float32), logs)).cpu().numpy()
        tokens, logs_there = packed[0].view(np.int32), packed[1]
        tokens[~np.isfinite(logs_there)] = NO_TOKEN
        return tokens, logs_there

    def _launched(self, logits: Tensor, draws: Sequence[Draw]) -> Tensor:
        """Argmax and draw of each row, int32 [rows, 2]; no draw for rows that need none."""
        from trtla.runtime.sampling.device_kernels import choose_rows, filter_rows

        (rows, size), tiles = logits.shape, self._tiles
        chunk, chunks = tiles.of(size)
        buffers = self._room(rows, chunks, logits.device)
        _write(buffers.numbers[:rows], size, draws)
        buffers.jobs[:rows].copy_(buffers.host[:rows], non_blocking=True)
        choose_rows[(rows, chunks)](
            logits,
            buffers.jobs,
            buffers.parts,
            buffers.arrived,
            buffers.out,
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
                buffers.jobs,
                buffers.parts,
                buffers.out,
                logits.stride(0),
                size,
                chunks,
                BLOCK=tiles.block,
                num_warps=_BLOCK_WARPS,
            )
        return buffers.out[:rows]

    def _room(self, rows: int, chunks: int, device: torch.device) -> _Buffers:
        buffers = self._buffers
        if buffers is None or buffers.rows < rows or buffers.chunks < chunks:
            buffers = self._buffers = _Buffers(1 << (rows - 1).bit_length(), chunks, device)
        return buffers


def _ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most probable tokens of each row of [rows, vocab] and their log probabilities.

    They are looked for in parts of a row first: PyTorch ranks each row by few threads.
    """
    rows, width = logits.shape
    parts = torch.nn.functional.pad(logits, (0, -width % _RANKED), value=float("-inf"))
    best, ids = parts.view(rows, -1, _RANKED).topk(min(count, _RANKED))
    ids = ids + _RANKED * torch.arange(ids.shape[1], device=ids.device)[:, None]
    first, at = best.flatten(1).topk(min(count, best[0].numel()))
    first = first - logits.logsumexp(-1, keepdim=True)
    room = (0, count - first.shape[1])
    ids = torch.nn.functional.pad(ids.flatten(1).gather(1, at), room)
    return ids, torch.nn.functional.pad(first, room, value=float("-inf"))


def _write(numbers: np.ndarray, size: int, draws: Sequence[Draw]) -> None:
    """Write the rows' jobs: rows that are not drawn have temperature 0."""
    settings = numbers[:, 2:].view(np.float64)
    numbers[:, :2], settings[:] = (0, size), (0.0, 1.0)
    for row, params, noise in draws:
        numbers[row, :2] = int(noise * 2.0**53), params.top_k or size
        settings[row] = params.temperature, params.top_p


def device_sampler(device: torch.device) -> DeviceSampler | None:
    """A model's sampler for its device; None where PyTorch's operations have to choose."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    reason = self_test(device)
    if reason is not None:
        _log.warning("tokens are chosen on the host, which is slower: %s", reason)
        return None
    return DeviceSampler()


@lru_cache(maxsize=8)
def self_test(device: torch.device) -> str | None:
    """Describe how the kernel differs from `draw` on this device; None: it does not."""
    try:
        return difference(device, DeviceSampler())
    except Exception as error:  # of many types: no compiler, a driver that refuses, no memory
        return f"{type(error).__name__}: {first_line(error)}"


_SETTINGS = [
    SamplingParams(temperature=heat, top_k=top_k, top_p=top_p)
    for heat, top_k, top_p in ((0.3, 0, 1.0), (1.5, 40, 1.0), (0.3, 0, 0.8), (1.5, 40, 0.6))
]


def difference(device: torch.device, sampler: StepSampler, size: int = 5008) -> str | None:
    """Describe the first row of a small step whose choices differ from those of `draw`."""
    example, draws = _example(device, size)
    for logits in (example, example.flip(1)):  # the second call must not see the first one's state
        numbers = on_host(logits)
        greedy = argmax(numbers)
        drawn = [draw_at(numbers[d.row : d.row + 1], d.params, [d.noise])[0] for d in draws]
        for right, got in zip((greedy, drawn), sampler.choose(logits, draws), strict=True):
            for row, (token, choice) in enumerate(zip(right, got, strict=True)):
                if token != choice:
                    name = "argmax" if right is greedy else "draw"
                    return f"the {name} of row {row} is {choice}, and should be {token}"
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
