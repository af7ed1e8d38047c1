"""Memory bandwidth of the machine that arms run on, and the peak memory that they take."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtla.bench.arms import ArmRun
from trtla.runtime.device import Device
from trtla.runtime.threads import num_threads

_BYTES = 2**29
_TRIES = 5
_CUDA_SHARE = 8  # times the bytes of a CPU's try, which would be too short on a GPU
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Hardware:
    """Figures of model and machine to which forwards are compared."""

    weight_bytes: int
    """Bytes that one forward reads, for arms that do not report theirs."""
    read_bandwidth: float
    """Bytes a second."""

    def gb_per_s(self, run: ArmRun) -> float | None:
        if not run.forward_s:
            return None
        return (run.weight_bytes or self.weight_bytes) * run.forwards / run.forward_s / 1e9


def read_bandwidth(device: Device, size: int = _BYTES) -> float:
    """Measure bytes a second, the best of some tries: the largest number, read by all threads; on
    CUDA a sum, or a copy (read + write)."""
    if device.type == "cuda":
        return _device_bandwidth(str(device), _CUDA_SHARE * size)
    parts = np.array_split(np.ones(size // 4, np.float32), num_threads())
    best = float("inf")
    with ThreadPoolExecutor(len(parts)) as pool:
        for _ in range(_TRIES + 1):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - start)
    return size / best


def _device_bandwidth(device: str, size: int) -> float:
    """Measure by the device's own clock: the host's would include the launch."""
    import torch

    size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    with torch.cuda.device(device):  # events are of the current one
        data = torch.ones(size // 4, device=device)
        target = torch.empty_like(data)
        return max(2 * size / _device_s(lambda: target.copy_(data)), size / _device_s(data.sum))


def _device_s(launch: Callable[[], object]) -> float:
    import torch

    best = float("inf")
    for _ in range(_TRIES + 1):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        launch()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1000)
    return best


def reset_peak(device: Device) -> None:
    """Start counting peak memory again, if the system supports it."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(str(device))
        return
    with suppress(OSError):
        _CLEAR.write_text("5")  # Linux: VmHWM starts again at the resident size


def peak_bytes(device: Device) -> int:
    """Return the peak since `reset_peak`: of the device on CUDA, else resident in this process."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(str(device)))
    with suppress(OSError):
        if match := re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE):
            return int(match[1]) * 1024
    try:
        import resource
    except ImportError:  # not on every system
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit
