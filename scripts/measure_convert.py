#!/usr/bin/env python3
"""Memory and speed of `trtla convert` on a checkpoint of about 2 GB, next to plain `cp`.

    .venv/bin/python scripts/measure_convert.py [--rounds 3] [--work-dir DIR]

The checkpoint is the shipped model enlarged by scripts/scale_llama.py. Peak memory is the child's
maximum resident set, less that of a child which only imports what convert imports. Rounds alternate
the two commands; both end with their data on disk (cp is followed by sync).
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
CONVERT = "import sys; from pathlib import Path; from trtla.build.convert import convert; "
CONVERT += "len(sys.argv) > 1 and convert(Path(sys.argv[1]), Path(sys.argv[2]), dtype='bfloat16')"


def timed(command: list[str]) -> tuple[float, float]:
    """(seconds, peak resident megabytes) of a child process."""
    started = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"error: {' '.join(command)} failed")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


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
        imports = [sys.executable, "-c", CONVERT]
        idle_s, idle_mb = timed(imports)
        copies, converts, peaks = [], [], []
        for _ in range(args.rounds):
            copies.append(timed(["sh", "-c", f"cp -r '{model}' '{work}/copy' && sync"])[0])
            seconds, peak = timed([*imports, str(model), str(work / "ckpt")])
            converts.append(seconds - idle_s)
            peaks.append(peak - idle_mb)
            shutil.rmtree(work / "copy")
            shutil.rmtree(work / "ckpt")
        print(f"checkpoint {size:.0f} MB, imports {idle_mb:.0f} MB and {idle_s:.1f} s")
        print(f"cp and sync  {statistics.median(copies):.1f} s  {[round(s, 1) for s in copies]}")
        print(
            f"convert      {statistics.median(converts):.1f} s  {[round(s, 1) for s in converts]}"
        )
        print(f"convert's throughput is {sum(copies) / sum(converts):.2f} of cp's")
        print(f"peak memory beyond the imports {max(peaks):.0f} MB")


if __name__ == "__main__":
    main()
