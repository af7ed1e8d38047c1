#!/usr/bin/env python3
"""Memory and speed of `trtla convert` on a checkpoint of about 2 GB, next to plain `cp`.

    .venv/bin/python scripts/measure_convert.py [--rounds 3] [--work-dir DIR]

The checkpoint is the shipped model enlarged by scripts/scale_llama.py. Peak memory is the child's
maximum resident set, less that of a child which only imports what convert imports. Rounds alternate
the two; both end with their data on disk (cp is followed by sync), neither time holds imports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trtla

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
SCALE = Path(__file__).with_name("scale_llama.py")
SHAPE = "--hidden-size 2048 --num-hidden-layers 18 --num-attention-heads 32 "
SHAPE += "--num-key-value-heads 8 --intermediate-size 7168 --dtype bfloat16"
CONVERT = """
import sys, time
from pathlib import Path
from trtla.build.convert import convert
started = time.perf_counter()
if len(sys.argv) > 1:
    convert(Path(sys.argv[1]), Path(sys.argv[2]), dtype="bfloat16")
print(time.perf_counter() - started)
"""


def converted(*arguments: str) -> tuple[float, float]:
    """(seconds without the imports, peak resident megabytes) of a converting child process."""
    command = [sys.executable, "-c", CONVERT, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        printed = child.stdout.read() if child.stdout else ""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit("error: convert failed")
    return float(printed), usage.ru_maxrss / 1024


def copied(source: Path, target: Path) -> float:
    """Seconds of a plain copy that ends on disk."""
    started = time.perf_counter()
    subprocess.run(["sh", "-c", f"cp -r '{source}' '{target}' && sync"], check=True)
    return time.perf_counter() - started


def report(name: str, times: list[float]) -> None:
    """Print the median and the single times."""
    each = ", ".join(f"{seconds:.1f}" for seconds in times)
    print(f"{name}: median {statistics.median(times):.1f} s of {each}")


def main() -> None:
    """Make the checkpoint, alternate cp and convert, print medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work-dir", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.work_dir) as folder:
        work = Path(folder)
        model = work / "model"
        paths = ["--model-dir", str(SHIPPED), "--output-dir", str(model)]
        subprocess.run([sys.executable, str(SCALE), *paths, *SHAPE.split()], check=True)
        size = sum(path.stat().st_size for path in model.iterdir()) / 1e6
        copies: list[float] = []
        converts: list[float] = []
        _, imports = converted()
        peak = imports
        for _ in range(args.rounds):
            copies.append(copied(model, work / "copy"))
            shutil.rmtree(work / "copy")  # both start with as much free memory
            seconds, used = converted(str(model), str(work / "ckpt"))
            converts.append(seconds)
            peak = max(peak, used)
            shutil.rmtree(work / "ckpt")
    print(f"checkpoint {size:.0f} MB")
    report("cp and sync", copies)
    report("convert", converts)
    print(f"throughput {statistics.median(copies) / statistics.median(converts):.2f} of cp's")
    print(f"peak memory {peak - imports:.0f} MB beyond the {imports:.0f} MB of the imports")


if __name__ == "__main__":
    main()
