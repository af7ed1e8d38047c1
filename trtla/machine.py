"""Description of this machine: processor, memory, CUDA driver, GPUs, and PyTorch's view of them.

Nothing here fails: absent or broken parts are None, empty or a sentence.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtla.errors import first_line, is_installed, sentence

Capability = tuple[int, int]
"""A GPU's compute capability, such as (9, 0)."""

_SETS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16"),
    *("asimd", "sve", "bf16", "svebf16"),
)
"""Instruction sets that PyTorch's speed depends on, by Linux's names."""
_QUERY = ("name", "compute_cap", "memory.total", "memory.free", "driver_version")
_TIMEOUT_S = 20.0
CGROUPS = Path("/sys/fs/cgroup")
"""Linux's control groups."""
_MEMORY_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    "": ("memory.max", "memory.current", ""),
}
"""By the controller in /proc/self/cgroup, of versions 1 and 2: the files with the limit and with
the usage, and the prefix of memory.stat's keys."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor and its memory."""

    model: str
    cores: int
    """Cores that this process may use."""
    quota: float | None
    """Cores whose time its control group may take, if that has such a limit."""
    memory_bytes: int | None
    free_bytes: int | None
    """Memory that programs can still get, the page cache included."""
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
    """The newest CUDA that it supports."""


@dataclass(frozen=True, slots=True)
class Torch:
    """The installed PyTorch."""

    version: str | None
    """None: it is not installed, or cannot be imported."""
    cuda: str | None = None
    """The CUDA it was built for; None: built without."""
    problem: str | None = None
    """Why importing it failed, or its warning while it looked for GPUs."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The whole description."""

    python: str
    platform: str
    torch: Torch
    transformers: str | None
    llguidance: str | None
    """Its version; structured output needs it."""
    cpu: Cpu
    driver: Driver
    gpus: tuple[Gpu, ...]
    """The GPUs that PyTorch sees, or else those that nvidia-smi lists."""
    usable: bool
    """PyTorch sees them."""


def look() -> Machine:
    """Describe this machine."""
    torch, seen = _torch()
    listed, driver_version = _nvidia_smi()
    return Machine(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu(),
        driver=Driver(driver_version, _driver_cuda()),
        torch=torch,
        transformers=package_version("transformers"),
        llguidance=package_version("llguidance"),
        gpus=seen or listed,
        usable=bool(seen),
    )


def package_version(package: str) -> str | None:
    """The version of an installed package, which is not imported."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def loaded_driver() -> tuple[str | None, str | None]:
    """The name that NVIDIA's kernel module reports, and the newest CUDA of its library."""
    return _proc("driver/nvidia/version").get("NVRM version"), _driver_cuda()


def available_memory(*, swap: bool = False) -> int | None:
    """Bytes that this process can still get, the page cache included; None where it is unknown.

    Containers and batch systems limit it to less than the machine's.

    Args:
        swap: count free swap as well, for what other programs hold.
    """
    room = _memory("MemAvailable")
    if swap and room is not None:
        room = min(room + (_memory("SwapFree") or 0), _memory("MemTotal") or room)
    known = (room, *_cgroup_rooms(swap), _address_room())
    return min((room for room in known if room is not None), default=None)


def _cgroup_rooms(swap: bool) -> Iterator[int]:
    """The room below each memory limit of this process's control group and its parents."""
    for controller, folder in _cgroups("memory"):
        if (room := _cgroup_room(folder, *_MEMORY_FILES[controller])) is not None:
            size, free = room
            yield min(free + _cgroup_swap(folder), size) if swap else free


def _cgroups(wanted: str) -> Iterator[tuple[str, Path]]:
    """The folders of this process's control group and its parents that limit a resource.

    Yields:
        The controller of version 1, or an empty name for version 2, and a folder.
    """
    for line in _lines(Path("/proc/self/cgroup")):
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and wanted not in controllers.split(","):
            continue
        controller = wanted if controllers else ""
        root = CGROUPS / controller
        cgroup = root / group.lstrip("/")  # in a container the root may be its own
        for folder in {root, cgroup, *cgroup.parents}:
            if folder.is_relative_to(root):
                yield controller, folder


def cpu_quota() -> float | None:
    """The cores whose time this process's control groups may take; None: as many as there are."""
    return min(filter(None, (_quota(*group) for group in _cgroups("cpu"))), default=None)


def _quota(controller: str, folder: Path) -> float | None:
    """A group's limit of time: `50000 100000` in one file of version 2, in two of version 1."""
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controller else ("cpu.max",)
    words = " ".join(line for name in names for line in _lines(folder / name)).split()
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return None  # max, -1, or a sandbox that only looks like Linux
    return int(words[0]) / int(words[1])


def _cgroup_room(folder: Path, limit: str, used: str, kept: str) -> tuple[int, int] | None:
    """The limit of a group's memory, and what is free below it."""
    most, taken = (_lines(folder / name) for name in (limit, used))
    if not most or not taken or not most[0].isdecimal():
        return None
    stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
    cache = (stat.get(f"{kept}{name}_file", "0") for name in ("active", "inactive"))
    with suppress(ValueError):  # in sandboxes that only look like Linux
        size = int(most[0])
        return size, max(0, size - int(taken[0]) + sum(map(int, cache)))
    return None


def _cgroup_swap(folder: Path) -> int:
    """Free swap that a group of version 2 may use."""
    most, taken = (_lines(folder / f"memory.swap.{name}") for name in ("max", "current"))
    free = _memory("SwapFree") or 0
    if most == ["max"]:
        return free
    if not most or not taken or not (most[0].isdecimal() and taken[0].isdecimal()):
        return 0
    return min(free, max(0, int(most[0]) - int(taken[0])))


def _address_room() -> int | None:
    """The room below a limit of address space (`ulimit -v`)."""
    most, taken = resource.getrlimit(resource.RLIMIT_AS)[0], _lines(Path("/proc/self/statm"))
    if most == resource.RLIM_INFINITY or not taken:
        return None
    return max(0, most - int(taken[0].split()[0]) * resource.getpagesize())


def _memory(key: str) -> int | None:
    """An entry of /proc/meminfo, `24675328 kB`, in bytes."""
    value = _proc("meminfo").get(key)
    return int(value.split()[0]) * 1024 if value else None


def _proc(name: str) -> dict[str, str]:
    """The first value of every `key: value` line of a file in /proc; empty where there is none."""
    lines = _lines(Path("/proc", name))
    pairs = [line.split(":", 1) for line in reversed(lines) if ":" in line]
    return {key.strip(): value.strip() for key, value in pairs}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def process_rank() -> int:
    """The rank of this process among those that torchrun or mpirun started; 0 without them."""
    names = ["RANK"] if "MASTER_ADDR" in os.environ else []
    names += ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"]
    ranks = (os.environ.get(name, "") for name in names)
    return next((int(rank) for rank in ranks if rank.isdecimal()), 0)


def usable_cores() -> int:
    """Cores that this process may use: those it may run on, as far as its quota goes."""
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return within_quota(len(ours) or os.cpu_count() or 1)


def within_quota(cores: int) -> int:
    """Return as many of these cores as the control group's quota of time has, to the nearest whole
    one: more threads would use it up early in each period, and all wait for the next."""
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota + 0.5)))


def cpu() -> Cpu:
    """The processor and the memory; unlike `look`, without importing torch."""
    info = _proc("cpuinfo")
    flags = (info.get("flags") or info.get("Features") or "").split()
    return Cpu(
        model=info.get("model name") or platform.processor() or platform.machine(),
        cores=usable_cores(),
        quota=cpu_quota(),
        memory_bytes=_memory("MemTotal"),
        free_bytes=available_memory(),
        instruction_sets=tuple(name for name in _SETS if name in flags),
    )


def _torch() -> tuple[Torch, tuple[Gpu, ...]]:
    """PyTorch and the GPUs that it sees. A warning raised on the way is its problem."""
    if not is_installed("torch"):
        return Torch(None), ()
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways
        return Torch(None, problem=sentence(error)), ()
    gpus, problem = [], None
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            for index in range(count):
                capability = torch.cuda.get_device_capability(index)
                free, total = torch.cuda.mem_get_info(index)
                gpus.append(Gpu(index, torch.cuda.get_device_name(index), capability, total, free))
        except Exception as error:  # e.g. a driver that does not answer
            gpus, problem = [], sentence(error)
    problem = problem or next((first_line(warning.message) for warning in heard), None)
    return Torch(torch.__version__, torch.version.cuda, problem), tuple(gpus)


def _nvidia_smi() -> tuple[tuple[Gpu, ...], str | None]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return (), None
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(_QUERY)]
    gpus = []
    for index, (name, capability, total, free, _) in enumerate(rows):
        major, _, minor = capability.partition(".")
        known = major.isdecimal() and minor.isdecimal()
        pair = (int(major), int(minor)) if known else None
        # MIG and integrated GPUs show `[N/A]`.
        memory = (int(mib) * 2**20 if mib.isdecimal() else None for mib in (total, free))
        gpus.append(Gpu(index, name, pair, *memory))
    return tuple(gpus), rows[0][-1] if rows else None


def _driver_cuda() -> str | None:
    """The CUDA version of libcuda, which is there with the driver even without nvidia-smi."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    if failed or not version.value:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
