#!/usr/bin/env python3
"""Attention over the paged cache on CUDA: the Triton kernel against the packed SDPA path.

    .venv/bin/python scripts/measure_attention.py [--contexts 1024,16384 --fed 1,84 --batch 1]

Every call reads another layer of the cache, so that keys and values come from memory. Calls are
captured in a CUDA graph and timed in turns; GB/s count keys and values once, read by the device.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.models.attention import attend
from trtla.runtime.models.batch import make_batch
from trtla.runtime.models.cuda.capture import CudaCapture
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import paged_attend, paged_problem
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as TokenSequence
from trtla.settings.lookahead import AUTOREGRESSIVE

ROUNDS, WARM_UP = 21, 3
BYTES_PER_POINT = 2 * 2**30
"""Keys and values that a point's layers hold together, to be larger than any L2 cache."""


@dataclass(frozen=True)
class Shape:
    """A model's attention; the default is Llama-3.1-8B's."""

    heads: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype

    def read_bytes(self, tokens: int) -> int:
        """Keys and values of one layer."""
        return 2 * tokens * self.kv_heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True)
class Point:
    """What a step looks like."""

    context: int
    fed: int
    batch: int

    @property
    def blocks(self) -> int:
        """Cache blocks of a sequence."""
        return -(-(self.context + self.fed) // TOKENS_PER_BLOCK)

    def feeds(self) -> list[Feed]:
        """Sequences whose drafts are chains of 6 below the input, as n-grams are."""
        parents = tuple(0 if node % 6 == 0 else node for node in range(self.fed - 1))
        draft = Draft((1,) * len(parents), parents)
        feeds = []
        for index in range(self.batch):
            # As in a busy cache, pages of several sequences alternate.
            blocks = tuple(range(index, self.blocks * self.batch, self.batch))
            request = Request(index, (1,) * self.context)
            sequence = TokenSequence(request, AUTOREGRESSIVE, NoDrafter(), [1], blocks=blocks)
            sequence.num_cached = self.context
            feeds.append(Feed.step(sequence, draft))
        return feeds


def calls(point: Point, shape: Shape, device: torch.device) -> dict[str, Callable[[], float]]:
    """By name, what attends once in every layer and returns the seconds of one."""
    num_blocks = point.blocks * point.batch
    layers = max(1, math.ceil(BYTES_PER_POINT / shape.read_bytes(num_blocks * TOKENS_PER_BLOCK)))
    layers = min(layers, 64)
    sizes = (layers, shape.kv_heads, shape.head_size)
    cache = KVCache(*sizes, num_blocks, shape.dtype, device)
    cache.data.normal_()
    feeds = point.feeds()
    packed = make_batch(feeds, cache, shape.heads // shape.kv_heads, shape.dtype)
    paged = StepInputs(Room.of(feeds), 0, device).fill(feeds)
    size = (point.fed * point.batch, shape.heads, shape.head_size)
    queries = torch.randn(size, device=device, dtype=shape.dtype)
    (packed_group,), (paged_group,) = packed.groups, paged.groups

    def by_sdpa() -> Tensor:
        outs = [attend(queries, *cache.layer(layer), packed_group) for layer in range(layers)]
        return outs[-1]

    def by_kernel() -> Tensor:
        outs = [paged_attend(queries, *cache.layer(layer), paged_group) for layer in range(layers)]
        return outs[-1]

    torch.testing.assert_close(by_kernel(), by_sdpa(), rtol=3e-2, atol=3e-2)
    capture = CudaCapture(cache.device)
    replays = {name: capture(run) for name, run in (("SDPA", by_sdpa), ("kernel", by_kernel))}

    def timed(replay: Callable[[], None]) -> Callable[[], float]:
        return lambda: _seconds(replay) / layers

    return {name: timed(replay) for name, replay in replays.items()}


def _seconds(replay: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def measure(point: Point, shape: Shape, device: torch.device) -> str:
    """A table's row: medians of interleaved rounds."""
    arms = calls(point, shape, device)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(ROUNDS + WARM_UP):
        for name, arm in arms.items():
            times[name].append(arm())
    medians = {name: statistics.median(values[WARM_UP:]) for name, values in times.items()}
    read = shape.read_bytes(point.batch * (point.context + point.fed))
    cells = [f"{t * 1e6:.1f} | {read / t / 1e9:.0f}" for t in (medians["kernel"], medians["SDPA"])]
    ratio = medians["SDPA"] / medians["kernel"]
    first = f"{point.batch} | {point.context} | {point.fed}"
    return f"| {first} | {' | '.join(cells)} | {ratio:.2f} |"


def copy_bandwidth(device: torch.device) -> float:
    """GB/s, read and written, of copying 2 GB on the device."""
    source = torch.empty(2**31, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [_seconds(lambda: target.copy_(source)) for _ in range(ROUNDS)]
    return 2 * source.numel() / statistics.median(times) / 1e9


def integers(text: str) -> list[int]:
    """A comma list."""
    return [int(part) for part in text.split(",")]


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--contexts", type=integers, default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--fed", type=integers, default=[1, 8, 16, 32, 84])
    parser.add_argument("--batch", type=integers, default=[1, 8])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    """Print a table with a row for every batch, context and number of fed tokens."""
    args, device = parse_args(), torch.device("cuda")
    shape = Shape(args.heads, args.kv_heads, args.head_size, getattr(torch, args.dtype))
    if not torch.cuda.is_available():
        raise SystemExit("error: PyTorch sees no CUDA device\nhint: run it on a machine with a GPU")
    if paged_problem(shape.head_size, shape.dtype, device, fp8=False):
        raise SystemExit("error: the kernels cannot run here\nhint: pip install triton")
    name, versions = torch.cuda.get_device_name(device), f"torch {torch.__version__}"
    print(f"{name}; Python {platform.python_version()}, {versions}; {shape}")
    print(f"copy bandwidth {copy_bandwidth(device):.0f} GB/s\n")
    print("| batch | context | fed | kernel, us | GB/s | SDPA, us | GB/s | SDPA / kernel |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for batch in args.batch:
        for context in args.contexts:
            for fed in args.fed:
                print(measure(Point(context, fed, batch), shape, device), flush=True)


if __name__ == "__main__":
    main()
