"""Where no library can be compiled one note says why and what it costs, and all goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import trtla as command
from trtla.runtime.models.cpu.compiler import NativeCode, NotCompiled

NO_COMPILER = {"CXX": "no-such-compiler"}
COST = (
    "note: no C++ compiler was found (no-such-compiler): decoding is at least 3 times slower; "
    "install g++, or trtla from a wheel for this platform"
)


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run trtla as a process of its own, which says everything for the first time."""
    return subprocess.run(
        [sys.executable, "-m", "trtla", *map(str, args)],
        env={**os.environ, **NO_COMPILER},
        capture_output=True,
        text=True,
        check=False,
    )


def test_build_and_run_without_a_compiler_say_once_what_that_costs(tmp_path, tiny_llama):
    built = run("build", "--checkpoint-dir", tiny_llama, "--output-dir", tmp_path / "engine")
    assert built.returncode == 0
    assert built.stderr.count("slower") == 1
    assert COST in built.stderr.splitlines()
    ran = run("run", "-m", tmp_path / "engine", "-p", "def f(", "-n", "9")
    assert ran.returncode == 0
    assert ran.stderr.count("slower") == 1
    assert COST in ran.stderr.splitlines()
    assert "slower" not in run("run", "-q", "-m", tmp_path / "engine", "-p", "f", "-n", "1").stderr


def test_doctor_tells_who_runs_forward_and_candidate_trees():
    ran = command("doctor", env=NO_COMPILER)
    rows = [line.split("|")[1:3] for line in ran.out.splitlines() if line.startswith("|")]
    shown = {name.strip(): value.strip() for name, value in rows}
    missing = "no C++ compiler was found (no-such-compiler)"
    assert shown["CPU forward"] == f"PyTorch's operations: {missing}"
    assert shown["candidate trees"] == f"Python: {missing}"


@pytest.mark.parametrize("missing", ["main", "includes"])
def test_sources_that_are_not_there_are_no_error(tmp_path, missing):
    (tmp_path / "there").mkdir()
    folders = {"main": "there", "includes": "there", missing: "gone"}
    code = NativeCode(
        "a test", "nothing", tmp_path / folders["main"] / "a.cpp", [tmp_path / folders["includes"]]
    )
    with pytest.raises(NotCompiled, match="gone cannot be read: No such file"):
        code.compiled()
    assert code.state().startswith("nothing: ")
