"""Compiles the C++ parts for this processor, once, into the user's cache."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from trtla.errors import first_line
from trtla.files import temporary_folder, user_cache

FLAGS = (
    *("-O3", "-std=gnu++17", "-ffp-contract=fast"),
    *("-pthread", "-fvisibility=hidden", "-fPIC", "-shared"),
)
SLOWER = "decoding is at least 3 times slower"
"""What it costs on CPUs that there is no compiled forward."""
_TIMEOUT_S = 300
_log = logging.getLogger(__name__)


class NotCompiled(Exception):
    """Why there is no compiled library, in one line.

    Args:
        cause: it.
        hint: what to do about it.
    """

    def __init__(self, cause: str, hint: str = "name another compiler with CXX") -> None:
        super().__init__(cause)
        self.hint = hint


_told: list[NotCompiled] = []


def tell_slower(error: NotCompiled, cost: str) -> None:
    """Say on stderr what it costs that a library is not there: once in a process, the first."""
    if not _told:
        _told.append(error)
        _log.warning("note: %s: %s; %s", error, cost, error.hint)


class NativeCode:
    """C++ sources that make one shared library.

    Args:
        name: what it is for, to people who wait for it.
        instead: what runs without it.
        main: the file to compile; all C++ files of the folders `includes` and of its own count.
        flags: for the compiler, beside those of all sources.
    """

    def __init__(
        self,
        name: str,
        instead: str,
        main: Path,
        includes: Iterable[Path] = (),
        flags: Iterable[str] = (),
    ) -> None:
        self._name, self._instead, self._main = name, instead, main
        self.flags = (*FLAGS, *flags)
        self._folders = (main.parent, *includes)

    def compiled(self) -> Path:
        """The shared library for this processor, compiled unless it is in the cache.

        Raises:
            NotCompiled: no compiler, or it failed.
        """
        library = self._place()
        if library.is_file():
            return library
        _log.warning("note: compiling %s", self._name)
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            return _compile((_compiler(), _march(), *self.flags), self._main, library)
        except OSError as error:
            raise NotCompiled(
                f"{library.parent} cannot be written: {error.strerror}",
                "name a folder that can be with XDG_CACHE_HOME",
            ) from None

    def is_compiled(self) -> bool:
        """Whether `compiled` has nothing to do."""
        try:
            return self._place().is_file()
        except NotCompiled:
            return False

    def problem(self) -> str | None:
        """Why `compiled` would fail, as far as is known without doing it; None: nothing is."""
        try:
            self._place()
        except NotCompiled as error:
            return str(error)
        return None

    def state(self) -> str:
        """What runs, or what `compiled` would do, for people."""
        if self.is_compiled():
            return "compiled for this processor"
        problem = self.problem()
        if problem:
            return f"{self._instead}: {problem}"
        return f"{Path(_compiler()).name} compiles it when it is first needed"

    def _place(self) -> Path:
        try:
            return user_cache() / f"{self._main.stem}-{self._key(_compiler())}.so"
        except OSError as error:
            raise NotCompiled(
                f"{error.filename} cannot be read: {error.strerror}", "install trtla again"
            ) from None

    def _key(self, compiler: str) -> str:
        """What the library depends on: sources, flags, compiler and processor."""
        digest = hashlib.sha256(" ".join((compiler, _march(), *self.flags, *_processor())).encode())
        for folder in self._folders:
            for source in sorted(folder.iterdir()):
                digest.update(source.name.encode() + source.read_bytes())
        return digest.hexdigest()[:16]


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NotCompiled(
            f"no C++ compiler was found ({', '.join(names)})",
            "install g++, or trtla from a wheel for this platform",
        )
    return found


def _march() -> str:
    """This machine's instructions; `TRTLA_MARCH` names fewer, such as x86-64-v3."""
    return f"-march={os.environ.get('TRTLA_MARCH') or 'native'}"


def _processor() -> tuple[str, ...]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return (platform.machine(), platform.processor())
    names = ("model name", "flags", "Features", "CPU part")
    return tuple(sorted({line for line in lines if line.startswith(names)}))


def _compile(compiler: Sequence[str], main: Path, library: Path) -> Path:
    """Compile beside the library's place and move it there, so no one ever finds half of it."""
    with temporary_folder(library.parent, ".compile-") as folder:
        made = folder / library.name
        command = [*compiler, "-o", str(made), str(main)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotCompiled(f"{compiler[0]} took more than {_TIMEOUT_S} s") from None
        if done.returncode:
            raise NotCompiled(f"{compiler[0]} failed: {first_line(done.stderr)}")
        made.replace(library)
    return library
