"""The threads of the compiled forward: shared work under sanitizers and forks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from trtla.runtime.models.cpu.native_code import FORWARD

pytestmark = pytest.mark.deep

DRIVER = Path(__file__).parent / "native" / "team.cpp"


def sanitizes(kind: str, folder: Path) -> bool:
    """Whether g++ is here and links that sanitizer."""
    empty = folder / "empty.cpp"
    empty.write_text("int main() {}")
    command = ["g++", f"-fsanitize={kind}", str(empty), "-o", str(folder / "empty")]
    return shutil.which("g++") is not None and not subprocess.run(command, check=False).returncode


@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
def test_jobs_of_several_callers_run_whole_and_in_order(tmp_path: Path, kind: str) -> None:
    if not sanitizes(kind, tmp_path):
        pytest.skip(f"g++ has no sanitizer {kind}")
    program = tmp_path / "team"
    flags = ["-O1", "-g", "-std=gnu++17", "-pthread", f"-fsanitize={kind}", f"-I{FORWARD.folder}"]
    subprocess.run(["g++", *flags, str(DRIVER), "-o", str(program)], check=True)
    env = {"TSAN_OPTIONS": "die_after_fork=0", "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([program, "300"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
