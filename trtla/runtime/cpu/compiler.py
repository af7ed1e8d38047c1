"""Compiles the C++ forward for this machine's processor, once: later runs find it in a cache.

Knows files, a compiler and a processor; nothing of models.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from trtla.errors import first_line
from trtla.user_cache import user_cache

SOURCES = Path(__file__).parent / "native"
_FLAGS = (
    *("-O3", "-std=gnu++17", "-ffp-contract=fast"),
    *("-pthread", "-fvisibility=hidden", "-fPIC", "-shared"),
)
_TIMEOUT_S = 300
_log = logging.getLogger(__name__)


class NotCompiled(Exception):
    """Why there is no compiled forward, in one line."""


def compiled_library() -> Path:
    """The shared library for this processor, compiled unless it is in the cache.

    Raises:
        NotCompiled: no compiler, or it failed.
    """
    library = _place()
    if library.is_file():
        return library
    _log.warning("compiling the CPU forward for this processor, once: some seconds")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        return _compile(_compiler(), library)
    except OSError as error:
        raise NotCompiled(f"{library.parent} cannot be written: {error.strerror}") from None


def state() -> str:
    """What `compiled_library` would do, without doing it."""
    try:
        if _place().is_file():
            return "compiled for this processor"
        return f"{Path(_compiler()).name} compiles it when it is first needed"
    except NotCompiled as error:
        return f"PyTorch's operations: {error}"


def _place() -> Path:
    return user_cache() / f"step-{_key(_compiler())}.so"


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NotCompiled(f"no C++ compiler was found ({', '.join(names)})")
    return found


def _march() -> str:
    """This machine's instructions; `TRTLA_MARCH` names fewer, such as x86-64-v3."""
    return f"-march={os.environ.get('TRTLA_MARCH') or 'native'}"


def _key(compiler: str) -> str:
    """What the library depends on: sources, flags, compiler and processor."""
    digest = hashlib.sha256(" ".join((compiler, _march(), *_FLAGS, *_processor())).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _processor() -> tuple[str, ...]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return (platform.machine(), platform.processor())
    told = ("model name", "flags", "Features", "CPU part")
    return tuple(sorted({line for line in lines if line.startswith(told)}))


def _compile(compiler: str, library: Path) -> Path:
    """Compile beside the library's place and move it there, so no one ever finds half of it."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".compile-") as folder:
        made = Path(folder) / library.name
        command = [compiler, _march(), *_FLAGS, "-o", str(made), str(SOURCES / "step.cpp")]
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
