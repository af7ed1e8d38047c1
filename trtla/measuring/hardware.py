"""Figures of the machine that arms run on, and the peak memory that they take."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtla.measuring.arms import ArmRun
from trtla.runtime.device import Device

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
