"""Which deep tests CI leaves out: those whose files are what they have passed with.

`pytest.mark.sources(...)` names the files of the project that a test can fail for, beside its own.
`.ci/run` names a folder with TRTLA_PASSED; there a run of the whole suite that passes leaves a note
for each such set of files. Without that name every test runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CUDA_SOURCES = pytest.mark.sources(
    "trtla/runtime/models", "trtla/runtime/sampling", "trtla/runtime/*.py", "trtla/formats"
)
"""Kernels for GPUs, interpreted."""
RANK_SOURCES = pytest.mark.sources(
    *("trtla/runtime", "trtla/llm", "trtla/formats", "trtla/settings", "trtla/cli/run"),
    *("trtla/cli/shared", "trtla/serve", "trtla/interrupts.py"),
)
"""Processes that run one model together."""
NATIVE_SOURCES = pytest.mark.sources(
    *("trtla/runtime/models/cpu", "trtla/runtime/models/heads", "trtla/runtime/tree"),
    "tests/runtime/native",
)
"""C++ and how it is compiled."""
_ALWAYS = ("constraints.txt", "tests/support", "tests/conftest.py")


def leave_out_unchanged(items: Iterable[pytest.Item]) -> None:
    """Skip the tests whose files, packages and processor have passed; note which of them run."""
    folder = _folder()
    deep = [item for item in items if folder and item.get_closest_marker("deep")]
    for item in deep:
        for mark in item.iter_markers("sources"):
            own = str(item.path.relative_to(ROOT))
            assert folder is not None
            passed = folder / f"tests-{_digest((own, *mark.args))}"
            if passed.exists():
                reason = f"its files are those that {passed.read_text().strip()} has passed with"
                item.add_marker(pytest.mark.skip(reason=reason))
            else:
                (folder / "running").mkdir(parents=True, exist_ok=True)
                (folder / "running" / passed.name).touch()


def note_passed(passed: bool) -> None:
    """Keep what has run as passed, or forget it; called once, when all has run."""
    folder = _folder()
    for note in (folder / "running").glob("*") if folder else ():
        if passed:
            commit = ["git", "rev-parse", "--short", "HEAD"]
            name = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=True)
            (folder / note.name).write_text(name.stdout)
        note.unlink()


def _folder() -> Path | None:
    named = os.environ.get("TRTLA_PASSED")
    return Path(named) if named else None


@cache
def _digest(patterns: Sequence[str]) -> str:
    """What these files hold, and what they run on."""
    found = hashlib.sha256(f"{sys.version} {_processor()}".encode())
    for pattern in (*_ALWAYS, *patterns):
        paths = sorted(ROOT.glob(pattern))
        assert paths, f"{pattern} names no file"
        for path in paths:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file() and "__pycache__" not in file.parts:
                    found.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return found.hexdigest()[:24]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
