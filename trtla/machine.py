"""What this machine has: processor, memory, CUDA driver, GPUs, and the PyTorch on top of them.

It only looks, and nothing here fails: what is absent or broken is None, empty or a sentence.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from trtla.errors import first_line, sentence

Capability = tuple[int, int]
"""A GPU's compute capability, such as (9, 0)."""


_SETS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16"),
    *("asimd", "sve", "bf16", "svebf16"),
)
"""Instruction sets that decide how fast PyTorch is, as Linux names them."""
_QUERY = ("name", "compute_cap", "memory.total", "memory.free", "driver_version")
_MIB = 2**20
_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor and its memory."""

    model: str
    cores: int
    """Cores that this process may use."""
    memory_bytes: int | None
    free_bytes: int | None
    """What programs can still get, the page cache included."""
    instruction_sets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU."""

    index: int
    name: str
    capability: Capability | None
    memory_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver; None where it is not there."""

    version: str | None = None
    cuda: str | None = None
    """The newest CUDA it serves."""


@dataclass(frozen=True, slots=True)
class Torch:
    """The installed PyTorch."""

    version: str | None
    """None: it cannot be imported."""
    cuda: str | None = None
    """The CUDA it was built for; None: built without."""
    problem: str | None = None
    """Why importing it failed, or what it said when it looked for GPUs."""


@dataclass(frozen=True, slots=True)
class Machine:
    """All of it."""

    python: str
    platform: str
    cpu: Cpu
    driver: Driver
    torch: Torch
    transformers: str | None
    gpus: tuple[Gpu, ...]
    """Those that PyTorch sees, or else those that nvidia-smi sees."""
    usable: bool
    """Whether PyTorch sees them."""


def look() -> Machine:
    """Look at this machine."""
    torch, seen = _torch()
    listed, driver_version = _nvidia_smi()
    return Machine(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu(),
        driver=Driver(driver_version, _driver_cuda()),
        torch=torch,
        transformers=_version("transformers"),
        gpus=seen or listed,
        usable=bool(seen),
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> Cpu:
    info, memory = _proc("cpuinfo"), _proc("meminfo")
    flags = (info.get("flags") or info.get("Features") or "").split()
    return Cpu(
        model=info.get("model name") or platform.processor() or platform.machine(),
        cores=_cores(),
        memory_bytes=_kib(memory.get("MemTotal")),
        free_bytes=available_memory(),
        instruction_sets=tuple(name for name in _SETS if name in flags),
    )


def available_memory() -> int | None:
    """Bytes that programs can still get, the page cache included; None where it is not told."""
    return _kib(_proc("meminfo").get("MemAvailable"))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _proc(name: str) -> dict[str, str]:
    """The first value of every `key: value` line of a file in /proc; empty where there is none."""
    try:
        text = Path("/proc", name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def _kib(value: str | None) -> int | None:
    """`24675328 kB` in bytes."""
    return int(value.split()[0]) * 1024 if value else None


def _torch() -> tuple[Torch, tuple[Gpu, ...]]:
    """PyTorch and the GPUs that it sees. What it warns of on the way is its problem."""
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways
        return Torch(None, problem=sentence(error)), ()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            gpus, problem = _torch_gpus(torch), None
        except Exception as error:  # e.g. a driver that does not answer
            gpus, problem = (), sentence(error)
    heard = next((first_line(warning.message) for warning in said), None)
    return Torch(torch.__version__, torch.version.cuda, problem or heard), gpus


def _torch_gpus(torch: ModuleType) -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(_torch_gpu(torch, index) for index in range(torch.cuda.device_count()))


def _torch_gpu(torch: ModuleType, index: int) -> Gpu:
    capability = torch.cuda.get_device_capability(index)
    free, total = torch.cuda.mem_get_info(index)
    return Gpu(index, torch.cuda.get_device_name(index), tuple(capability), total, free)


def _nvidia_smi() -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs and the driver version that nvidia-smi tells; none where it cannot."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return (), None
    if done.returncode:
        return (), None
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(_QUERY)]
    return tuple(_listed_gpu(*item) for item in enumerate(rows)), rows[0][-1] if rows else None


def _listed_gpu(index: int, row: list[str]) -> Gpu:
    name, capability, total, free, _ = row
    major, _, minor = capability.partition(".")
    known = major.isdecimal() and minor.isdecimal()
    return Gpu(index, name, (int(major), int(minor)) if known else None, _mib(total), _mib(free))


def _mib(value: str) -> int | None:
    """A number of MiB in bytes; None for `[N/A]`, which MIG and integrated GPUs show."""
    return int(value) * _MIB if value.isdecimal() else None


def _driver_cuda() -> str | None:
    """The CUDA version of libcuda, which is there with the driver also where nvidia-smi is not."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    if failed or not version.value:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
