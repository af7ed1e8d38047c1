"""Every test file is collected: a folder's name never hides what is in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLLECT = """
import pytest

class Visited:
    def pytest_collect_file(self, file_path):
        print(f"visited {file_path}")

pytest.main(["--collect-only", "--noconftest", "-p", "no:python"], plugins=[Visited()])
"""


def test_every_test_file_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line.partition("visited ") for line in done.stdout.splitlines()]
    visited = {Path(path) for _, mark, path in lines if mark}
    files = set((ROOT / "tests").rglob("test_*.py"))
    assert ROOT / "tests" / "build" / "test_gguf.py" in files
    assert files <= visited
