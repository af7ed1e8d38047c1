"""Compiles the C++ parts for this processor, once, into the user's cache."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from trtla.errors import first_line
from trtla.files import user_cache

FLAGS = (
    *("-O3", "-std=gnu++17", "-ffp-contract=fast"),
    *("-pthread", "-fvisibility=hidden", "-fPIC", "-shared"),
)
_TIMEOUT_S = 300
COMPILED, FALLBACK = "compiled for this processor", "PyTorch's operations: "
_log = logging.getLogger(__name__)


class NotCompiled(Exception):
    """Why there is no compiled forward, in one line."""


class NativeCode:
    """C++ sources that make one shared library.

    Args:
        name: what it is for, to people who wait for it.
        main: the file to compile; all C++ files of the folders `includes` and of its own count.
    """

    def __init__(self, name: str, main: Path, includes: Iterable[Path] = ()) -> None:
        self._name, self._main = name, main
        self._folders = (main.parent, *includes)

    def compiled(self) -> Path:
        """The shared library for this processor, compiled unless it is in the cache.

        Raises:
            NotCompiled: no compiler, or it failed.
        """
        library = self._place()
        if library.is_file():
            return library
        _log.warning("compiling %s", self._name)
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            return _compile(_compiler(), self._main, library)
        except OSError as error:
            raise NotCompiled(f"{library.parent} cannot be written: {error.strerror}") from None

    def state(self) -> str:
        """What `compiled` would do, without doing it."""
        try:
            if self._place().is_file():
                return COMPILED
            return f"{Path(_compiler()).name} compiles it when it is first needed"
        except NotCompiled as error:
            return f"{FALLBACK}{error}"

    def _place(self) -> Path:
        return user_cache() / f"{self._main.stem}-{self._key(_compiler())}.so"

    def _key(self, compiler: str) -> str:
        """What the library depends on: sources, flags, compiler and processor."""
        digest = hashlib.sha256(" ".join((compiler, _march(), *FLAGS, *_processor())).encode())
        for folder in self._folders:
            for source in sorted(folder.iterdir()):
                digest.update(source.name.encode() + source.read_bytes())
        return digest.hexdigest()[:16]


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NotCompiled(f"no C++ compiler was found ({', '.join(names)})")
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


def _compile(compiler: str, main: Path, library: Path) -> Path:
    """Compile beside the library's place and move it there, so no one ever finds half of it."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".compile-") as folder:
        made = Path(folder) / library.name
        command = [compiler, _march(), *FLAGS, "-o", str(made), str(main)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotCompiled(f"{compiler} took more than {_TIMEOUT_S} s") from None
        if done.returncode:
            raise NotCompiled(f"{compiler} failed: {first_line(done.stderr)}")
        made.replace(library)
    return library
