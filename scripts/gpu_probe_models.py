"""Sections `models`, `tests` and `sanitizer` of scripts/gpu_probe.py: other programs that it runs.

`models` has enlarged copies of the shipped model made, in the background.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from gpu_probe_device import DRY
from gpu_probe_feeds import SIZES
from gpu_probe_figures import record

from trtla.files import ASSETS

SCRIPTS = Path(__file__).resolve().parent
BIG = Path(os.environ["PROBE_MODELS"])
WAIT_S = 150


def start() -> None:
    """Start making the models that are not there, by processes that outlive this one."""
    if DRY:
        print("a dry run takes the shipped model")
        return
    BIG.mkdir(exist_ok=True)
    for size in ("1B", "8B"):
        log = BIG / f"{size}.log"
        if log.exists():
            continue
        flags = {
            name if name != "head_size" else "head_dim": value
            for name, value in SIZES[size].items()
        }
        words = [word for name, value in flags.items() for word in (_flag(name), str(value))]
        command = [
            sys.executable, str(SCRIPTS / "scale_llama.py"), *words, "--dtype", "bfloat16",
            "--model-dir", str(ASSETS / "tiny-llama"), "--output-dir", str(BIG / size),
        ]  # fmt: skip
        shell = f'"$@" && touch {BIG / size}.made'
        with log.open("w") as out:
            subprocess.Popen(
                ["sh", "-c", shell, "sh", *command],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def model_dir(size: str) -> str:
    """The enlarged model of a size, waited for while it is still being made.

    Raises:
        FileNotFoundError: it is not made in time.
    """
    if DRY:
        return str(ASSETS / "tiny-llama")
    start()
    end = time.monotonic() + WAIT_S
    while not (BIG / f"{size}.made").exists():
        if time.monotonic() > end:
            raise FileNotFoundError(f"no model {size}: {(BIG / f'{size}.log').read_text()}")
        time.sleep(1)
    return str(BIG / size)


def tests() -> None:
    """The tests marked gpu.

    Raises:
        RuntimeError: pytest ended before it ran them.
    """
    if DRY:
        print("these tests need a GPU")
        return
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-q",
        "-n",
        "6",
        "-p",
        "no:cacheprovider",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "tests/runtime"], cwd=SCRIPTS.parent, env=environment, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    print(done.stdout[-6000:])
    counts = {
        what: int(number)
        for number, what in re.findall(r"(\d+) (passed|failed|error)", done.stdout)
    }
    if not counts.get("passed", 0) + counts.get("failed", 0):
        raise RuntimeError(f"no test ran: pytest's exit code is {done.returncode}")
    note = f"{counts.get('passed', 0)} passed"
    record("tests that need a GPU", counts.get("failed", 0) + counts.get("error", 0), note)


def sanitizer() -> None:
    """The kernels under compute-sanitizer, where it is installed."""
    if DRY or shutil.which("compute-sanitizer") is None:
        print("there is no compute-sanitizer")
        return
    command = ["compute-sanitizer", "--tool", "memcheck", sys.executable, "-W", "ignore"]
    done = subprocess.run(
        [*command, str(SCRIPTS / "gpu_probe.py"), "only", "mini"], text=True,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    print(done.stdout[-3000:])
    found = re.search(r"ERROR SUMMARY: (\d+) error", done.stdout)
    if found is None:
        raise RuntimeError("compute-sanitizer gave no summary")
    record("compute-sanitizer", int(found[1]))
