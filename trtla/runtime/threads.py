"""The number of threads of a forward on the CPU, the same for our C++ and for PyTorch."""

from __future__ import annotations

import os
import sys
import warnings
from functools import lru_cache
from pathlib import Path

from trtla.console import counted
from trtla.errors import TrtlaWarning, UsageError
from trtla.machine import usable_cores, within_quota
from trtla.settings.fields import is_whole, shown

_MOST = 1024
_chosen: list[int] = []
"""The last argument of `set_threads`, if any."""


def num_threads() -> int:
    """Return the number that `set_threads` chose, else OMP_NUM_THREADS, else the physical cores."""
    return _chosen[-1] if _chosen else _default()


def set_threads(count: int | None) -> None:
    """Use this many threads on a CPU from now on; None changes nothing."""
    if count is None:
        return
    if not is_whole(count) or not 1 <= count <= _MOST:
        raise UsageError(f"threads is {shown(count)}", f"use 1 to {_MOST}; one a core is best")
    _chosen[:] = [count]
    if sys.modules.get("torch") is not None:
        set_torch_threads()


def within_cores(count: int | None) -> int | None:
    """Return a chosen number of threads, at most the processors of this machine; more would only
    wait for each other."""
    processors = os.cpu_count() or 1
    if count is None or count <= processors:
        return count
    warnings.warn(
        f"threads {count} is above the {counted(processors, 'processor')} of this machine, which "
        "are used",
        TrtlaWarning,
        stacklevel=2,
    )
    return processors


def set_torch_threads() -> None:
    """Have PyTorch's operations in this thread use the same number."""
    import torch

    torch.set_num_threads(num_threads())


@lru_cache(maxsize=1)
def _default() -> int:
    named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(named) if named.isdecimal() and int(named) else _physical_cores()


def _physical_cores() -> int:
    """Count the cores that this process may use; hyper-threads of a core count once, and a quota of
    time is as many cores."""
    try:
        ours = os.sched_getaffinity(0)
        files = (f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in ours)
        return within_quota(len({Path(file).read_text() for file in files}) or usable_cores())
    except (AttributeError, OSError):
        return usable_cores()
