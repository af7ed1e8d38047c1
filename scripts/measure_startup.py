#!/usr/bin/env python3
"""Start of `trtla run` next to `import torch`: seconds until the first token, and CPU seconds.

    .venv/bin/python scripts/measure_startup.py [--rounds 10] [--model-dir DIR]

Each round runs all of them once, a process each, and differences are taken within a round: on a
shared machine the rounds differ more than what is measured. CPU seconds are user + system of the
whole process, its end included. `not collected` is torch without Python's garbage collector, as a
run imports it: what lies beyond that is trtla's own. A round that is not counted writes bytecode.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import trtla
from trtla import LookaheadConfig
from trtla.build.engine import build_engine
from trtla.formats.engine_limits import BuildSettings

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
TORCH = "import torch"
IMPORTS = {
    TORCH: "import torch; print(flush=True)",
    "import torch, not collected": (
        "import gc; gc.disable(); import torch; print(flush=True); gc.freeze()"
    ),
}


@dataclass(frozen=True, slots=True)
class Start:
    """One process: seconds to its first byte on stdout, seconds to its end, CPU seconds."""

    first_s: float
    wall_s: float
    cpu_s: float


def commands(engine: Path, model: Path) -> dict[str, list[str]]:
    """What is compared, by the name in the table; the first is what the others stand on."""
    run = ["-m", "trtla", "run", "--input-text", "def f(", "--max-output-len", "1", "--stream"]
    arms = {name: ["-c", code] for name, code in IMPORTS.items()}
    arms["trtla run, engine"] = [*run, "--engine-dir", str(engine)]
    arms["trtla run, Hugging Face folder"] = [*run, "--engine-dir", str(model)]
    return {name: [sys.executable, *arguments] for name, arguments in arms.items()}


def start(command: list[str], bytecode: str) -> Start:
    """Run a command whose first output means that it has started."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as child:
        assert child.stdout is not None
        os.read(child.stdout.fileno(), 1)
        first = time.perf_counter() - begun
        child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"error: {' '.join(command)} failed")
    return Start(first, time.perf_counter() - begun, usage.ru_utime + usage.ru_stime)


def spread(values: list[float]) -> str:
    """Median, and the range behind it."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def report(starts: dict[str, list[Start]]) -> None:
    """Print the table, medians with their ranges; the last columns are differences in a round."""
    print("| | first output, s | CPU, s | first output beyond import torch | CPU beyond it |")
    print("|---|---|---|---|---|")
    base = starts[TORCH]
    for name, found in starts.items():
        first = [s.first_s - t.first_s for s, t in zip(found, base, strict=True)]
        cpu = [s.cpu_s - t.cpu_s for s, t in zip(found, base, strict=True)]
        columns = [[s.first_s for s in found], [s.cpu_s for s in found], first, cpu]
        shown = columns[:2] if name == TORCH else columns
        cells = [*map(spread, shown), *["-"] * (len(columns) - len(shown))]
        print(f"| {name} | {' | '.join(cells)} |")


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model-dir", type=Path, default=SHIPPED, help="a Hugging Face folder")
    parser.add_argument("--rounds", type=int, default=10)
    return parser.parse_args()


def main() -> None:
    """Build an engine, run the rounds, print the table."""
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine, bytecode = Path(folder) / "engine", str(Path(folder) / "bytecode")
        build_engine(args.model_dir, engine, BuildSettings(LookaheadConfig(7, 7, 7)))
        arms = commands(engine, args.model_dir)
        rounds = [
            {name: start(command, bytecode) for name, command in arms.items()}
            for _ in range(args.rounds + 1)
        ]
    report({name: [done[name] for done in rounds[1:]] for name in arms})


if __name__ == "__main__":
    main()
