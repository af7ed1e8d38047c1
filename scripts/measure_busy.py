#!/usr/bin/env python3
"""Measures what decoding keeps of its speed while other processes use the cores.

    .venv/bin/python scripts/measure_busy.py MODEL [--busy 0 1 2] [--threads N] [--rounds 5]

Plain decoding of one prompt, beside 0, 1, 2 ... processes that do nothing but compute, in turns. A
row is the median over the rounds; its ratio is to the quiet speed of the same round.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

from trtla import LLM, SamplingParams
from trtla.settings.lookahead import AUTOREGRESSIVE

PROMPT = "The capital of France is"


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="an engine or a Hugging Face folder")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--threads", type=int, help="threads that decode; PyTorch's choice if not given"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-output-len", type=int, default=64)
    parser.add_argument("--dtype", default="auto")
    return parser.parse_args()


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """That many processes that compute without end, meanwhile."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(processes)]
    time.sleep(0.3)  # until they do
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def tokens_per_s(llm: LLM, sampling: SamplingParams) -> float:
    """The speed of plain decoding, the prompt's forward left out."""
    times = [time.perf_counter() for _ in llm.stream(PROMPT, sampling, AUTOREGRESSIVE)]
    return (len(times) - 1) / (times[-1] - times[0])


def main() -> None:
    """Print a table, one row for each number of busy processes."""
    given = parse()
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    sampling = SamplingParams(max_output_len=given.max_output_len)
    with LLM(given.model, dtype=given.dtype, max_batch_size=1) as llm:
        llm.end_ids = frozenset()
        tokens_per_s(llm, sampling)
        found: dict[int, list[float]] = {count: [] for count in given.busy}
        for _ in range(given.rounds):
            for count in given.busy:
                with busy(count):
                    found[count].append(tokens_per_s(llm, sampling))
        print(f"{llm.description}, {torch.get_num_threads()} threads")
    print("| busy processes | tokens/s | min-max | over quiet |\n|---:|---:|---:|---:|")
    for count, speeds in found.items():
        ratios = [own / quiet for own, quiet in zip(speeds, found[given.busy[0]], strict=True)]
        cells = f"{median(speeds):.1f} | {min(speeds):.1f}-{max(speeds):.1f} | {median(ratios):.2f}"
        print(f"| {count} | {cells} |")


if __name__ == "__main__":
    main()
