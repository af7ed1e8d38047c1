"""What the machine allows and what was used of it: measured read bandwidth, peak memory.

Bandwidth is measured in this process, with the threads that the arms use.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import torch

_BYTES = 2**29
_TRIES = 5
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def read_bandwidth(device: torch.device, size: int = _BYTES) -> float:
    """Bytes a second, the best of some tries: a sum on the CPU, a copy on CUDA (read + write)."""
    data = torch.ones(size // 4, device=device)
    target = torch.empty_like(data) if device.type == "cuda" else None
    best = float("inf")
    for _ in range(_TRIES + 1):
        start = time.perf_counter()
        if target is None:
            data.sum()
        else:
            target.copy_(data)
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return size * (1 if target is None else 2) / best


def reset_peak(device: torch.device) -> None:
    """Start counting peak memory anew, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR.write_text("5")  # Linux: VmHWM starts again at the resident size
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Most memory since `reset_peak`: of the device on CUDA, else resident in this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        match = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        match = None
    return int(match[1]) * 1024 if match else _max_resident()


def _max_resident() -> int:
    try:
        import resource
    except ImportError:  # not on every system
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit
