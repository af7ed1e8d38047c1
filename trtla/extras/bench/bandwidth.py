"""The speed at which the machine reads memory, which bounds that of decoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from trtla.runtime.device import Device
from trtla.runtime.threads import num_threads

_BYTES = 2**29
_TRIES = 5
_CUDA_SHARE = 8  # times the bytes of a CPU's try, which would be too short on a GPU


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
