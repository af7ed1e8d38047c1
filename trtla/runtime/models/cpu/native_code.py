"""The C++ parts: the forward and the candidate trees, prebuilt in a wheel or compiled here once."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from trtla.console import Console, Progress
from trtla.errors import first_line
from trtla.files import CACHE_HINT, FULL, temporary_folder, user_cache
from trtla.machine import usable_cores
from trtla.runtime.models.cpu.levels import NATIVE, Level, UnknownLevel, chosen_level, processor

SLOWER = "decoding is at least 3 times slower"
"""The cost on CPUs of having no compiled forward."""
FLAGS = ("-O3", "-std=gnu++17", "-pthread", "-fvisibility=hidden", "-fPIC")
PREBUILT = Path(__file__).parent / "prebuilt"
"""The folder of a wheel's libraries for its platform."""
_NATIVE = Path(__file__).parent / "native"
_SEAL = b"trtla sha256"
"""The mark behind the program in a library's file, before the digest of both."""
_DIGEST_BYTES = 32
_KEPT = 8
"""Libraries that the cache has of a kind and level: this release's and earlier ones."""
_TIMEOUT_S = 300
"""The most time for a compiler's work on one file."""
_log = logging.getLogger(__name__)
_noted: set[str] = set()


class NotCompiled(Exception):
    """A library that cannot be compiled; the reason in one line."""

    def __init__(self, cause: str, hint: str = "name another compiler with CXX") -> None:
        super().__init__(cause)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Build:
    """A library to make: its place, the compiler with its flags, and the files to compile."""

    library: Path
    command: tuple[str, ...]
    files: tuple[Path, ...]


def note_slower(error: NotCompiled, cost: str) -> None:
    """Log, once in a process, the cost of a missing library."""
    if cost not in _noted:
        _noted.add(cost)
        _log.warning("note: %s: %s; %s", error, cost, error.hint)


def find_compiler() -> str:
    """The path of `CXX`, or else of g++ or clang++."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise NotCompiled(
            f"no C++ compiler was found ({', '.join(names)})",
            "install g++, or trtla from a wheel for this platform",
        )
    return compiler


def make(builds: Sequence[Build], progress: Progress) -> None:
    """Make libraries in a temporary folder and move them into place, so none is ever half there."""
    for build in builds:
        build.library.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(builds[0].library.parent, "compile") as folder:
        objects = {
            (build, file): folder / f"{build.library.stem}-{file.stem}.o"
            for build in builds
            for file in build.files
        }
        pool = ThreadPoolExecutor(usable_cores())
        try:
            running = [
                pool.submit(_run, folder, build.command, "-c", "-o", target, file)
                for (build, file), target in objects.items()
            ]
            progress(0, len(running))
            for done, task in enumerate(as_completed(running), 1):
                task.result()
                progress(done, len(running))
        finally:  # after an error nothing more is begun
            pool.shutdown(cancel_futures=True)
        for build in builds:
            target = folder / build.library.name
            parts = [objects[build, file] for file in build.files]
            _run(folder, build.command, "-shared", "-o", target, *parts)
            write_sealed(target, target.read_bytes())
            target.replace(build.library)


def _remove_old(library: Path) -> None:
    """Remove the oldest libraries of this kind and level, of other releases of trtla."""

    def kind(path: Path) -> str:
        return path.stem.rpartition("-")[0]

    alike = (path for path in library.parent.glob("*.so") if kind(path) == kind(library))
    with suppress(OSError):
        newest = sorted(alike, key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[_KEPT:]:
            path.unlink(missing_ok=True)


def write_sealed(path: Path, program: bytes) -> None:
    """Write a library with the digest that `is_whole` compares, through to the disk: of a file that
    is renamed before, a power loss may leave the name and none of the pages."""
    with path.open("wb") as file:
        file.write(program + _SEAL + hashlib.sha256(program + _SEAL).digest())
        file.flush()
        os.fsync(file.fileno())


def _run(folder: Path, command: Sequence[str], *arguments: str | Path) -> None:
    """Run a compiler, whose own temporary files are made in the folder."""
    try:
        done = subprocess.run(
            [*command, *map(str, arguments)],
            env={**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotCompiled(f"{command[0]} took more than {_TIMEOUT_S} s") from None
    if done.returncode:
        if full := next((text for text in map(os.strerror, FULL) if text in done.stderr), None):
            raise _not_written(full)
        raise NotCompiled(f"{command[0]} failed: {first_line(done.stderr)}")


def _not_written(reason: str | None) -> NotCompiled:
    return NotCompiled(f"{user_cache()} cannot be written: {reason}", CACHE_HINT)


@dataclass(frozen=True, eq=False)
class NativeCode:
    """C++ sources that make one shared library for each level of processors."""

    name: str
    instead: str
    """The mechanism that runs without it."""
    folder: Path
    """The folder of its C++ files; each is compiled on its own."""
    includes: Sequence[Path] = ()
    """Folders that they include files of."""
    flags: Sequence[str] = ()
    """Flags for the compiler, beside `FLAGS`."""
    also: Sequence[NativeCode] = ()
    """Code that is compiled at the same time, since it is needed soon."""
    _failed: dict[Path, NotCompiled] = field(default_factory=dict)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted(self.folder.glob("*.cpp")))

    def load(self) -> ctypes.CDLL:
        """The library for this processor: the prebuilt one, else one that is compiled here."""
        prebuilt = PREBUILT / self.file_name(_level())
        if is_whole(prebuilt):
            with suppress(OSError):  # it is for another libc, or in a folder without programs
                return ctypes.CDLL(str(prebuilt))
        try:
            return ctypes.CDLL(str(self.compiled()))
        except OSError as error:
            raise NotCompiled(str(error)) from None

    def compiled(self) -> Path:
        """The library that this machine has compiled, now unless it is in the cache and whole."""
        level = _level()
        library = self._place(level)
        if library in self._failed:
            raise self._failed[library]
        try:
            if not is_whole(library):
                self._compile(level)
        except NotCompiled as error:
            self._failed[library] = error
            raise
        return library

    def _compile(self, level: Level) -> None:
        compiler = find_compiler()
        missing = [code for code in (self, *self.also) if not is_whole(code._place(level))]
        builds = [code.build(level, compiler, code._place(level)) for code in missing]
        console = Console(quiet=not _log.isEnabledFor(logging.WARNING))
        label = f"note: compiling for {level.name}, once"
        try:
            with console.progress(label, "files") as progress:
                make(builds, progress)
        except OSError as error:
            raise _not_written(error.strerror) from None
        for build in builds:
            _remove_old(build.library)

    def build(self, level: Level, compiler: str, library: Path, *flags: str) -> Build:
        """The build of a library for a level; `flags` must not change its results."""
        return Build(library, (compiler, *level.flags, *FLAGS, *self.flags, *flags), self.files)

    def is_prebuilt(self) -> bool:
        return is_whole(PREBUILT / self.file_name(_level()))

    def is_there(self) -> bool:
        """Return True if `load` has nothing to compile."""
        try:
            return self.is_prebuilt() or is_whole(self._place(_level()))
        except NotCompiled:
            return False

    def problem(self) -> str | None:
        """The reason why `load` would fail, as far as is known without compiling; None: none is."""
        try:
            if not self.is_there():
                self.file_name(_level())
                find_compiler()
        except NotCompiled as error:
            return str(error)
        return None

    def state(self) -> str:
        """A description, for people, of the library that runs or that `load` would make."""
        problem = self.problem()
        if problem:
            return f"{self.instead}: {problem}"
        if not self.is_there():
            return f"{Path(find_compiler()).name} compiles it when it is first needed"
        origin = "prebuilt" if self.is_prebuilt() else "compiled here"
        return f"{origin} for {_level().name}"

    def file_name(self, level: Level) -> str:
        """The name of its library's file, which depends on sources, flags and level."""
        return f"{self.name}-{level.name}-{self._digest(level)}.so"

    def _place(self, level: Level) -> Path:
        """The path in the user's cache; a compiler that `CXX` names has libraries of its own."""
        return user_cache() / os.environ.get("CXX", "").replace("/", "_") / self.file_name(level)

    def _digest(self, level: Level) -> str:
        digest = hashlib.sha256(" ".join((*FLAGS, *self.flags, *level.flags)).encode())
        if level is NATIVE:
            digest.update(" ".join(processor()).encode())
        try:
            for folder in (self.folder, *self.includes):
                for source in sorted(folder.iterdir()):
                    digest.update(source.name.encode() + source.read_bytes())
        except OSError as error:
            raise NotCompiled(
                f"{error.filename} cannot be read: {error.strerror}", "install trtla again"
            ) from None
        return digest.hexdigest()[:16]


Calls = Mapping[str, tuple[Any, Sequence[Any]]]
"""The functions of a library, with the types of their results and arguments."""


def declare(library: ctypes.CDLL, calls: Calls, short: Sequence[str] = ()) -> ctypes.CDLL:
    """The library, with the types of its calls.

    Args:
        short: calls that hold the interpreter's lock: they end before another thread that took it
            would give it back.
    """
    holding = ctypes.PyDLL(library._name, handle=library._handle)
    for name, (result, arguments) in calls.items():
        call = getattr(holding if name in short else library, name)
        call.restype, call.argtypes = result, list(arguments)
        setattr(library, name, call)
    return library


def is_whole(library: Path) -> bool:
    """Return True if a library is there, and as it was written.

    Otherwise loading it could kill the process: by SIGBUS if its file is short, and by any signal
    if it holds something else.
    """
    try:
        stat = library.stat()
        return _is_sealed(library, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return False


@lru_cache  # a start asks several times
def _is_sealed(library: Path, *_stamp: int) -> bool:
    data = library.read_bytes()
    sealed, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return sealed.endswith(_SEAL) and hashlib.sha256(sealed).digest() == digest


def _level() -> Level:
    try:
        return chosen_level()
    except UnknownLevel as error:
        raise NotCompiled(str(error), "omit it for the fastest") from None


TREES = NativeCode(
    "trees",
    "prompt lookup",
    Path(__file__).parents[2] / "tree" / "native",
    includes=(_NATIVE,),
    flags=("-ffp-contract=off",),  # chances are the same on every processor
)
# GCC's expression replacement moves additions behind all multiplications, whose products then leave
# the registers: integer products take up to 1.6 times as long.
FORWARD = NativeCode(
    "forward",
    "PyTorch's operations",
    _NATIVE,
    flags=("-ffp-contract=fast", "-fno-tree-ter"),
    also=(TREES,),
)
