"""Wheels of `scripts/build_wheel.sh`: on every level the bits that are compiled here.

TRTLA_WHEELS names the folder that they are in; `.ci/run` builds them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.installed import ROOT, Environment, tracked
from trtla.runtime.models.cpu.levels import LEVELS, own_levels

FOLDER = Path(os.environ.get("TRTLA_WHEELS", "no-such-folder"))
PREBUILT = re.compile(r"trtla/runtime/models/cpu/prebuilt/(forward|trees)-(.+)-[0-9a-f]{16}\.so")
MOST_BYTES = 14_000_000
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
SYSTEM = Path("/usr/aarch64-linux-gnu")


def wheel_for(machine: str) -> Path:
    found = list(FOLDER.glob(f"trtla-*-py3-none-manylinux_2_28_{machine}.whl"))
    if not found:
        pytest.skip(f"TRTLA_WHEELS names no folder with a wheel for {machine}")
    return found[0]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    wheel = wheel_for(platform.machine())
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.mark.parametrize("machine", LEVELS)
def test_a_wheel_holds_the_package_and_both_parts_for_every_level(machine: str) -> None:
    wheel = wheel_for(machine)
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    prebuilt = {name for name in names if name.endswith(".so")}
    assert names - prebuilt == set(tracked("trtla"))
    parts = {match.groups() for match in map(PREBUILT.fullmatch, prebuilt) if match}
    assert len(parts) == len(prebuilt)
    assert parts == {(part, lv.name) for part in ("forward", "trees") for lv in LEVELS[machine]}


@pytest.mark.parametrize("machine", LEVELS)
def test_auditwheel_finds_nothing_newer_than_the_wheel_says(machine: str) -> None:
    pytest.importorskip("auditwheel")
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel_for(machine))]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    version = re.search(r'platform\s+tag:\s+"manylinux_2_(\d+)_' + machine, shown)
    assert version, shown
    assert int(version[1]) <= 28


@pytest.mark.parametrize("level", [level.name for level in own_levels()])
def test_prebuilt_libraries_compute_the_bits_of_those_compiled_here(
    environment: Environment, level: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "tests", tmp_path / "tests")
    place = f"import sys; sys.path.append({str(tmp_path)!r}); from tests.support import bits; "
    there = environment.python(f"{place}bits.main()", TRTLA_MARCH=level, CXX="no-such-compiler")
    assert there.returncode == 0, there.stderr
    command = [sys.executable, "-m", "tests.support.bits"]
    own = {**os.environ, "TRTLA_MARCH": level}
    here = subprocess.run(command, env=own, cwd=ROOT, capture_output=True, text=True, check=True)
    prebuilt, compiled = json.loads(there.stdout), json.loads(here.stdout)
    assert all("/prebuilt/" in library for library in prebuilt["libraries"])
    assert not any("/prebuilt/" in library for library in compiled["libraries"])
    assert prebuilt["computed"] == compiled["computed"]


def test_the_first_run_of_a_wheel_compiles_nothing(
    environment: Environment, tmp_path: Path
) -> None:
    model = environment.site / "trtla" / "assets" / "tiny-llama"
    alone = {"PATH": "/no-such-folder", "CXX": "", "XDG_CACHE_HOME": str(tmp_path)}
    ran = environment.trtla("run", "-m", model, "-p", "def f(", "-n", "4", **alone)
    assert ran.returncode == 0, ran.stderr
    assert "compiled" in ran.stderr
    assert "compiling" not in ran.stderr
    assert "slower" not in ran.stderr
    assert list(tmp_path.rglob("*.so")) == []


LOADER = """
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** paths) {
    for (int i = 1; i < count; ++i) {
        void* library = dlopen(paths[i], RTLD_NOW);
        if (!library) return puts(dlerror()), 1;
        long (*lanes)() = (long (*)())dlsym(library, "trtla_lanes");
        printf("%ld lanes\\n", lanes ? lanes() : 0);
    }
}
"""


@pytest.mark.skipif(
    QEMU is None or not SYSTEM.is_dir() or shutil.which("aarch64-linux-gnu-gcc") is None,
    reason="needs g++-aarch64-linux-gnu and qemu-user",
)
def test_libraries_for_arm_load_there(tmp_path: Path) -> None:
    """What their products compute is checked by `scripts/check_products.sh`."""
    with zipfile.ZipFile(wheel_for("aarch64")) as packed:
        paths = sorted(packed.extract(n, tmp_path) for n in packed.namelist() if n.endswith(".so"))
    (tmp_path / "load.c").write_text(LOADER)
    program = tmp_path / "load"
    command = ["aarch64-linux-gnu-gcc", str(tmp_path / "load.c"), "-o", str(program), "-ldl"]
    subprocess.run(command, check=True)
    command = [str(QEMU), "-L", str(SYSTEM), str(program), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split("\n")) == (
        0,
        ["4 lanes", "4 lanes", "0 lanes", "0 lanes", ""],
    )
