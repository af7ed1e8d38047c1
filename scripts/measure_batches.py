#!/usr/bin/env python3
"""Plain, fixed and adaptive decoding at several batch sizes: medians of interleaved rounds.

    .venv/bin/python scripts/measure_batches.py [--batch-size 1,4,8,16] [--threads 2] [--rounds 5]

Every arm decodes the same held-out prompts (scripts/measure_acceptance.py) in one process, one
after the other, again and again, so that whatever else the machine does meets all of them. A batch
of n takes n prompts at a time. Speed-ups are medians of each round's ratio to plain decoding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from measure_acceptance import SHIPPED, held_out_prompts

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.results.metrics import Metrics
from trtla.settings.lookahead import Lookahead

ARMS: dict[str, Lookahead] = {
    "1,1,0": LookaheadConfig(1, 1, 0),
    "7,7,7": LookaheadConfig(7, 7, 7),
    "3,4,2": LookaheadConfig(3, 4, 2),
    "auto": "auto",
}


@dataclass(slots=True)
class Figures:
    """What the rounds of an arm gave."""

    tokens_per_s: list[float] = field(default_factory=list)
    tokens_per_step: float = 1.0
    fed_per_step: float = 1.0
    distinct: float = 1.0


def measure_round(llm: LLM, groups: list[list[str]], params: SamplingParams, arm: str) -> Figures:
    """Decode all groups once."""
    started = time.perf_counter()
    done = [c for group in groups for c in llm.generate(group, params, ARMS[arm])]
    t = Metrics.of(done, time.perf_counter() - started)
    return Figures(
        [t.tokens_per_s], t.tokens_per_step, t.fed_per_step or 0.0, t.distinct_4grams or 0.0
    )


def measure(llm: LLM, size: int, args: argparse.Namespace, params: SamplingParams) -> None:
    """Print a row an arm for one batch size."""
    prompts = held_out_prompts(max(size, args.prompts // size * size))
    groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    found = {arm: Figures() for arm in ARMS}
    for number in range(args.rounds + 1):
        for arm in ARMS:
            new = measure_round(llm, groups, params, arm)
            if number:  # the first round warms up
                new.tokens_per_s = [*found[arm].tokens_per_s, *new.tokens_per_s]
                found[arm] = new
    plain = found["1,1,0"].tokens_per_s
    for arm, figures in found.items():
        ratios = [a / b for a, b in zip(figures.tokens_per_s, plain, strict=True)]
        speed = statistics.median(figures.tokens_per_s)
        print(
            f"| {size} | {params.temperature} | {arm} | {speed:.0f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"| {figures.tokens_per_step:.2f} | {figures.fed_per_step:.1f} "
            f"| {figures.distinct:.2f} |",
            flush=True,
        )


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model-dir", type=Path, default=SHIPPED)
    parser.add_argument("--batch-size", default="1,4,8,16")
    parser.add_argument("--temperature", default="0,0.5")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-output-len", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args()


def main() -> None:
    """Print a table."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    sizes = [int(size) for size in args.batch_size.split(",")]
    print("| batch | temperature | lookahead | tokens/s | over plain | S | fed/step | distinct |")
    print("|---|---|---|---|---|---|---|---|")
    with LLM(
        args.model_dir,
        lookahead=LookaheadConfig(7, 7, 7),
        dtype=args.dtype,
        max_batch_size=max(sizes),
    ) as llm:
        for temperature in map(float, args.temperature.split(",")):
            for size in sizes:
                measure(llm, size, args, SamplingParams(args.max_output_len, temperature, seed=1))


if __name__ == "__main__":
    main()
