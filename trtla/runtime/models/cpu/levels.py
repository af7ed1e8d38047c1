"""Levels of processors: the C++ parts are compiled for them, in wheels as on this machine.

A level has one set of compiler flags, so that a library compiled here and a wheel's are the same.
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Level:
    """Instructions that some processors have."""

    name: str
    flags: tuple[str, ...]
    """The compiler's."""
    needs: frozenset[str]
    """Linux's names of them."""


class UnknownLevel(Exception):
    """A level that this processor does not run; the reason in one line."""


_V2 = frozenset({"cx16", "popcnt", "ssse3", "sse4_1", "sse4_2"})
_V3 = _V2 | {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16 = _V4 | {"avx512_vnni", "avx512_bf16"}
_TILES = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
_VNNI_FLAGS = ("-march=x86-64-v4", "-mavx512vnni")
_BF16_FLAGS = (*_VNNI_FLAGS, "-mavx512bf16")
LEVELS = {
    "x86_64": (
        Level("x86-64-v2", ("-march=x86-64-v2",), _V2),
        Level("x86-64-v3", ("-march=x86-64-v3",), _V3),
        Level("x86-64-v3-vnni", ("-march=x86-64-v3", "-mavxvnni"), _V3 | {"avx_vnni"}),
        Level("x86-64-v4", ("-march=x86-64-v4",), _V4),
        Level("x86-64-v4-vnni", _VNNI_FLAGS, _V4 | {"avx512_vnni"}),
        Level("x86-64-v4-bf16", _BF16_FLAGS, _BF16),
        Level(
            "x86-64-v4-amx",
            (*_BF16_FLAGS, "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
            _BF16 | _TILES,
        ),
    ),
    "aarch64": (
        Level("armv8-a", ("-march=armv8-a",), frozenset({"asimd"})),
        Level("armv8.2-a-dotprod", ("-march=armv8.2-a+dotprod",), frozenset({"asimd", "asimddp"})),
    ),
}
"""The levels of every kind of machine, the fastest last."""
NATIVE = Level("native", ("-march=native",), frozenset())
"""All instructions of the processor that compiles: for machines that have no levels."""


def chosen_level() -> Level:
    """The fastest level of this processor, or the one that `TRTLA_MARCH` names."""
    levels = own_levels()
    named = os.environ.get("TRTLA_MARCH")
    if not named:
        return levels[-1]
    by_name = {level.name: level for level in (NATIVE, *levels)}
    if named not in by_name:
        raise UnknownLevel(f"TRTLA_MARCH is {named}: this processor runs {', '.join(by_name)}")
    return by_name[named]


@lru_cache(maxsize=1)
def own_levels() -> tuple[Level, ...]:
    """The levels that this processor runs, the fastest last."""
    return levels_of(platform.machine(), _features())


def levels_of(machine: str, features: frozenset[str]) -> tuple[Level, ...]:
    """The levels that a processor with these features runs, the fastest last."""
    known = tuple(level for level in LEVELS.get(machine, ()) if level.needs <= features)
    return known or (NATIVE,)


def processor() -> tuple[str, ...]:
    """The identity of this processor, on which `NATIVE` depends."""
    return (platform.machine(), platform.processor(), *sorted(_features()))


def _features() -> frozenset[str]:
    """The instructions that Linux lists; matrix tiles only if it grants them to this process."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    cores = [set(line.split()) for line in lines if line.startswith(("flags", "Features"))]
    common = frozenset(set.intersection(*cores) if cores else ())
    return common if "amx_tile" not in common or _may_use_tiles() else common - _TILES


def _may_use_tiles() -> bool:
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return not ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
