"""The device that scripts/gpu_probe looks at, its clocks, and what it can do at best (`env`).

In a dry run it is the CPU, and what is timed runs once.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
from gpu_probe.figures import record
from torch import Tensor

from trtla.extras.bench.bandwidth import read_bandwidth
from trtla.runtime.device import resolve_device

DRY = os.environ.get("PROBE_DRY") == "1"
DEVICE = torch.device("cpu" if DRY else "cuda")
DTYPE = torch.float32 if DRY else torch.bfloat16


def sync() -> None:
    """Wait for the device."""
    if not DRY:
        torch.cuda.synchronize()


def enable_cudnn(enabled: bool) -> None:
    """Whether SDPA may take cuDNN."""
    if not DRY:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def replayed_us(run: Callable[[], Tensor], calls: int) -> float:
    """Median microseconds of one of `calls` products in a captured run."""
    if DRY:
        return timed_us(run) / calls
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return timed_us(graph.replay) / calls


def timed_us(run: Callable[[], object], rounds: int = 15, warm_up: int = 3) -> float:
    """Median microseconds of a run, by the device's events."""
    if DRY:
        return host_ms(run) * 1e3
    times = []
    for _ in range(rounds + warm_up):
        start, end = _event(), _event()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return float(statistics.median(times[warm_up:]))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def host_ms(run: Callable[[], object], waits: bool = True) -> float:
    """Milliseconds of one run by the host's clock; with `waits` to the device's end."""
    sync()
    start = time.perf_counter()
    run()
    if waits:
        sync()
    return (time.perf_counter() - start) * 1e3


def median_ms(run: Callable[[], object], rounds: int, warm_up: int = 2) -> float:
    """Median milliseconds of a run by the host's clock."""
    if DRY:
        rounds, warm_up = 1, 0
    return statistics.median([host_ms(run) for _ in range(rounds + warm_up)][warm_up:])


def weight_copies(out: int, inner: int, most: int) -> int:
    """Copies of a weight [out, inner] of 16 bits that no cache holds together."""
    return max(2, min(most, math.ceil(6e8 / (out * inner * 2))))


def copy_rate() -> float:
    """Bytes a second of a copy in the device's memory, read and written ones together."""
    source = torch.randn(2**20 if DRY else 2**30, device=DEVICE)
    target = torch.empty_like(source)
    return 2e6 * source.nbytes / timed_us(lambda: target.copy_(source))


def env() -> None:
    """Versions, and what the hardware can do at best."""
    print("python", sys.version.split()[0], "torch", torch.__version__, "cpus", os.cpu_count())
    if not DRY:
        print(torch.cuda.get_device_name(), "(free, total):", torch.cuda.mem_get_info())
        print("cuDNN", torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    copied = copy_rate()
    record("copy rate", copied / 1e9)
    source = torch.randn(2**20 if DRY else 2**30, device=DEVICE)
    record("read rate", source.nbytes / timed_us(source.sum) / 1e3)
    record(
        "trtla bench's own rate", read_bandwidth(resolve_device("cpu" if DRY else "cuda")) / copied
    )
    size = 64 if DRY else 8192
    square = torch.randn(size, size, device=DEVICE, dtype=DTYPE)
    record("products of 8192", 2 * size**3 / timed_us(lambda: square @ square) / 1e6)
