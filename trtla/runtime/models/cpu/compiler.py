"""Compiles C++ into shared libraries: all files at once, on all cores."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtla.console import Progress
from trtla.errors import first_line
from trtla.files import temporary_folder
from trtla.machine import usable_cores

_TIMEOUT_S = 300


class NotCompiled(Exception):
    """Why there is no compiled library, in one line."""

    def __init__(self, cause: str, hint: str = "name another compiler with CXX") -> None:
        super().__init__(cause)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Build:
    """A library to make: its place, the compiler with its flags, and the files to compile."""

    library: Path
    command: tuple[str, ...]
    files: tuple[Path, ...]


def find_compiler() -> str:
    """The path of `CXX`, or else of g++ or clang++."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NotCompiled(
            f"no C++ compiler was found ({', '.join(names)})",
            "install g++, or trtla from a wheel for this platform",
        )
    return found


def make(builds: Sequence[Build], progress: Progress) -> None:
    """Make libraries beside their places and move them there, so no one ever finds half of one."""
    for build in builds:
        build.library.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(builds[0].library.parent, ".compile-") as folder:
        objects = {
            (build, file): folder / f"{build.library.stem}-{file.stem}.o"
            for build in builds
            for file in build.files
        }
        with _all_at_once() as pool:
            running = [
                pool.submit(_run, build.command, "-c", "-o", made, file)
                for (build, file), made in objects.items()
            ]
            _await(running, progress)
        for build in builds:
            made = folder / build.library.name
            own = [objects[build, file] for file in build.files]
            _run(build.command, "-shared", "-o", made, *own)
            made.replace(build.library)


@contextmanager
def _all_at_once() -> Iterator[ThreadPoolExecutor]:
    """A thread for each core; after an error nothing more is begun."""
    pool = ThreadPoolExecutor(usable_cores())
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _await(running: Sequence[Future[None]], progress: Progress) -> None:
    progress(0, len(running))
    for done, one in enumerate(as_completed(running), 1):
        one.result()
        progress(done, len(running))


def _run(command: Sequence[str], *arguments: str | Path) -> None:
    try:
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotCompiled(f"{command[0]} took more than {_TIMEOUT_S} s") from None
    if done.returncode:
        raise NotCompiled(f"{command[0]} failed: {first_line(done.stderr)}")
