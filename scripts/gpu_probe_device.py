"""The device that scripts/gpu_probe.py looks at, and its clocks; in a dry run the CPU, run once."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from trtla.runtime.models.cuda.graphs import Capture, CudaCapture

DRY = os.environ.get("PROBE_DRY") == "1"
if DRY:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which happens later
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


def new_capture() -> Capture:
    """Captures CUDA graphs; in a dry run the call itself, into a tensor that stays."""

    def repeat(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        out = run().clone()

        def replay() -> None:
            out.copy_(run())

        return replay, out

    return repeat if DRY else CudaCapture()


def replayed_us(run: Callable[[], Tensor], calls: int) -> float:
    """Median microseconds of one of `calls` products in a captured run."""
    return timed_us(new_capture()(run)[0]) / calls


def timed_us(run: Callable[[], object], rounds: int = 15, warm_up: int = 3) -> float:
    """Median microseconds of a run, by the device's events."""
    if DRY:
        return host_ms(run) * 1e3
    times = []
    for _ in range(rounds + warm_up):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[warm_up:])


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
