"""Builds a wheel for each kind of Linux machine that a compiler is there for; see `build_wheel.sh`.

It contains the C++ parts, compiled for every instruction set level exactly as an installation from
source would compile them, and runs where glibc is 2.28 or newer. Libraries are kept in the user's
cache, in `wheel-libraries`, and compiled again when the sources, the flags or the compiler change.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

import trtla
from trtla.console import Console
from trtla.errors import TrtlaError
from trtla.files import user_cache
from trtla.runtime.models.cpu.levels import LEVELS
from trtla.runtime.models.cpu.native_code import (
    FORWARD,
    PREBUILT,
    TREES,
    NotCompiled,
    find_compiler,
    is_whole,
    make,
)

ROOT = Path(trtla.__file__).parents[1]
OLD_SYSTEMS = Path(__file__).with_name("manylinux_2_28.h")
FLAGS = ("-include", str(OLD_SYSTEMS), "-s", "-Wl,-z,defs")
"""What only wheels are compiled with: it changes no instruction."""
KEPT_S = 30 * 24 * 3600
"""How long libraries are kept."""


def compiler_for(machine: str) -> str | None:
    """This machine's own, or a cross compiler."""
    return (
        find_compiler()
        if machine == platform.machine()
        else shutil.which(f"{machine}-linux-gnu-g++")
    )


def export(folder: Path) -> None:
    """Copy the files that git knows."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def compile_libraries(machine: str, compiler: str, folder: Path) -> None:
    """Put both parts there for every level: kept ones, or compiled now."""
    place, kept = folder / PREBUILT.relative_to(ROOT), kept_libraries(machine, compiler)
    builds = [
        code.build(level, compiler, kept / code.file_name(level), *FLAGS)
        for level in LEVELS[machine]
        for code in (FORWARD, TREES)
    ]
    if missing := [build for build in builds if not is_whole(build.library)]:
        with Console().progress(f"compiling for {machine}", "files") as progress:
            make(missing, progress)
    place.mkdir(parents=True, exist_ok=True)
    for build in builds:
        shutil.copy(build.library, place)
    for library in kept.glob("*.so"):
        if library.stat().st_mtime < time.time() - KEPT_S:
            library.unlink(missing_ok=True)


def kept_libraries(machine: str, compiler: str) -> Path:
    """The folder of those that this compiler has made with these flags."""
    version = subprocess.check_output([compiler, "--version"])
    key = hashlib.sha256(version + OLD_SYSTEMS.read_bytes() + " ".join(FLAGS[2:]).encode())
    return user_cache() / "wheel-libraries" / f"{machine}-{key.hexdigest()[:16]}"


class PlatformDistribution(Distribution):
    """One whose libraries are there already."""

    def has_ext_modules(self) -> bool:
        """So it belongs among what is for one platform."""
        return True


def pack(machine: str, folder: Path, out: Path) -> Path:
    """Make the wheel of a folder; it suits every Python 3, as ctypes loads the libraries."""

    class Wheel(bdist_wheel):
        def get_tag(self) -> tuple[str, str, str]:
            return "py3", "none", f"manylinux_2_28_{machine}"

    os.chdir(folder)
    warnings.simplefilter("ignore")  # of setuptools, to people who run setup.py
    made = setup(
        script_args=["-q", "bdist_wheel", "--dist-dir", str(out)],
        distclass=PlatformDistribution,
        cmdclass={"bdist_wheel": Wheel},
    )
    os.chdir(ROOT)
    return Path(made.dist_files[-1][2])


def main(out: Path) -> None:
    """Build and check them."""
    for machine in LEVELS:
        compiler = compiler_for(machine)
        if compiler is None:
            print(f"note: no wheel for {machine}: there is no {machine}-linux-gnu-g++")
            continue
        with tempfile.TemporaryDirectory() as name:
            export(Path(name))
            compile_libraries(machine, compiler, Path(name))
            wheel = pack(machine, Path(name), out)
        print(f"{wheel}, {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (NotCompiled, TrtlaError) as error:
        sys.exit(f"error: {error}\nhint: {error.hint}")
