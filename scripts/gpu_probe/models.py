"""Sections `models`, `tests` and `sanitizer` of scripts/gpu_probe: other programs that it runs.

`models` has enlarged copies of the shipped model made, in the background.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from gpu_probe.device import DRY
from gpu_probe.feeds import SIZES
from gpu_probe.figures import record

from trtla.files import ASSETS

SCRIPTS = Path(__file__).resolve().parents[1]
BIG = Path(os.environ["PROBE_MODELS"])
WAIT_S = 60
"""For a model that is still being made; less than the limit of a section that needs one."""


def start() -> None:
    """Start making the models that are not there, by processes that outlive this one."""
    for size in ("1B", "8B"):
        _make(BIG / size, SIZES[size])
    print(f"models are in {BIG}, 19 GB once both are made: `rm -r {BIG}` when all is measured")


def _make(folder: Path, sizes: Mapping[str, int]) -> None:
    """Start making a model, unless it is there or a process does; whole, it gets its name."""
    with (log := folder.with_suffix(".log")).open("a") as out:
        if not _locked(out) or folder.exists():
            return
        out.truncate(0)
        words = [word for name, size in sizes.items() for word in (_flag(name), str(size))]
        part = folder.with_suffix(".part")
        command = [
            sys.executable, str(SCRIPTS / "scale_llama.py"), *words, "--dtype", "bfloat16",
            "--model-dir", str(ASSETS / "tiny-llama"), "--output-dir", str(part),
        ]  # fmt: skip
        shell = 'rm -rf "$0" && "${@:2}" && mv "$0" "$1"'
        subprocess.Popen(
            ["bash", "-c", shell, str(part), str(folder), *command],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        print(f"{folder} is being made; {log} says how that ends")


def _locked(log: IO[str]) -> bool:
    """Take the lock on a log; False: a process that makes the model holds it until it ends."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _flag(name: str) -> str:
    return "--" + name.replace("head_size", "head_dim").replace("_", "-")


def model_dir(size: str) -> str:
    """The enlarged model of a size, waited for while it is still being made.

    Raises:
        FileNotFoundError: it is not made in time, or its making failed.
    """
    if DRY:
        return str(ASSETS / "tiny-llama")
    start()
    folder, end = BIG / size, time.monotonic() + WAIT_S
    with folder.with_suffix(".log").open("a+") as log:
        while not folder.exists():
            if _locked(log) and not folder.exists():
                log.seek(0)
                raise FileNotFoundError(f"{folder} was not made: {log.read()[-500:]}")
            if time.monotonic() > end:
                raise FileNotFoundError(f"{folder} is still being made: run this section again")
            time.sleep(1)
    return str(folder)


_NO_FAILURE = re.compile(r"tests/|\[gw\d+\] \[ *\d+%\] (PASSED|SKIPPED) ")
"""Lines of a test that begins or goes well: one that fails is named at once."""


def tests() -> None:
    """The tests marked gpu.

    Raises:
        RuntimeError: pytest ended before it ran them.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-n",
        "10",
        "-vv",  # the project's own options have -q
    ]
    command += ["-p", "no:cacheprovider", "tests/runtime", "tests/extras/hosts"]
    printed = _streamed(command, _NO_FAILURE, OMP_NUM_THREADS="1")
    counts = {
        what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", printed)
    }
    if not counts.get("passed", 0) + counts.get("failed", 0):
        raise RuntimeError("no test ran; pytest says above why")
    note = f"{counts.get('passed', 0)} passed"
    record("tests that need a GPU", counts.get("failed", 0) + counts.get("error", 0), note)


def sanitizer() -> None:
    """The kernels under compute-sanitizer.

    Raises:
        RuntimeError: it gave no summary.
    """
    command = ["compute-sanitizer", "--tool", "memcheck", sys.executable, "-W", "ignore"]
    command += [str(SCRIPTS / "gpu_probe"), "only", "mini"]
    found = re.search(
        r"ERROR SUMMARY: (\d+) error", _streamed(command, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    )
    if found is None:
        raise RuntimeError("compute-sanitizer gave no summary")
    record("compute-sanitizer", int(found[1]))


def _streamed(command: list[str], hidden: re.Pattern[str] | None = None, **environment: str) -> str:
    """What a program prints, which is printed at once too: its end may never come.

    Args:
        hidden: the beginnings of lines that are not printed.
    """
    lines = []
    with subprocess.Popen(
        command, cwd=SCRIPTS.parent, env=os.environ | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if hidden is None or not hidden.match(line):
                print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines)
