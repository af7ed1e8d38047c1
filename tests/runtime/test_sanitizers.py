"""The C++ of the forward and the candidate trees under Address- and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.unchanged import NATIVE_SOURCES
from trtla.runtime.models.cpu.native_code import FLAGS, FORWARD, TREES

pytestmark = [
    NATIVE_SOURCES,
    pytest.mark.deep,
    pytest.mark.sanitizer,
]
COMPILER = shutil.which("g++")
SANITIZED = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def runtime_libraries() -> list[str]:
    """What must be loaded first, since Python itself is built without; empty: not installed."""
    if COMPILER is None:
        return []
    names = ("libasan.so", "libubsan.so")
    found = [
        subprocess.run(
            [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in names
    ]
    return found if all(Path(path).is_absolute() for path in found) else []


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compiles files as the library is, with sanitizers; gives its path."""
    if not runtime_libraries():
        pytest.skip("needs a g++ with sanitizers")

    def compile_(*files):
        made = tmp_path_factory.mktemp("sanitized") / "library.so"
        command = [COMPILER, *FLAGS, "-shared", *SANITIZED, "-o", str(made), *map(str, files)]
        subprocess.run(command, check=True)
        return made

    return compile_


def run(library, *command):
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(runtime_libraries()),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run(
        [sys.executable, *command, str(library)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_forwards_and_choices_stay_inside_their_arrays(build):
    done = run(build(*FORWARD.files), "-m", "tests.support.sanitized_forwards")
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr[-4000:]


def test_candidate_trees_stay_inside_their_arrays(build):
    done = run(build(*TREES.files), "-m", "tests.support.sanitized_trees")
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr[-4000:]


def test_a_read_behind_an_array_would_be_found(build, tmp_path):
    source = tmp_path / "broken.cpp"
    source.write_text(
        '#define EXPORTED extern "C" __attribute__((visibility("default")))\n'
        "EXPORTED float last(const float* x, long n) { return x[n]; }"
    )
    code = (
        "import ctypes, sys, numpy as np; x = np.zeros(16, np.float32);"
        "ctypes.CDLL(sys.argv[1]).last(x.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(16))"
    )
    done = run(build(source), "-c", code)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
