#!/usr/bin/env python3
"""Step compression S of the shipped model on prompts it has not seen: greedy and sampled.

    .venv/bin/python scripts/measure_acceptance.py [--lookahead 7,7,7] [--prompts 24]

Prompts are the beginnings of functions and classes in the held-out files of the Python standard
library (scripts/tiny_llama_data.py says which). Greedy text of small models loops, which flatters
S: the share of distinct 4-grams stands beside it, and the sampled figure is the honest one.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from pathlib import Path

from tiny_llama_data import held_out_files, read_texts

import trtla
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.run import Totals, totals

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
_START = re.compile(r"^(?:    )?(?:def|class) ", re.MULTILINE)
_BEFORE, _AFTER = 500, 60  # characters of a prompt before and after the start of the definition


def held_out_prompts(number: int, seed: int = 0) -> list[str]:
    """Stretches of held-out source that end shortly after a `def` or `class`."""
    prompts = [
        text[max(0, match.start() - _BEFORE) : match.start() + _AFTER]
        for text in read_texts(held_out_files())
        for match in _START.finditer(text)
        if match.start() >= _BEFORE
    ]
    return random.Random(seed).sample(prompts, min(number, len(prompts)))


def measure(llm: LLM, prompts: list[str], params: SamplingParams) -> Totals:
    """Decode the prompts one by one, as a single user would see it, and add up."""
    started = time.perf_counter()
    done = [llm.generate(prompt, params)[0] for prompt in prompts]
    return totals(done, time.perf_counter() - started)


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model-dir", type=Path, default=SHIPPED)
    parser.add_argument("--lookahead", type=LookaheadConfig.parse, default="7,7,7")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--max-output-len", type=int, default=96)
    return parser.parse_args()


def main() -> None:
    """Print a table: one row greedy, one sampled at temperature 0.5."""
    args = parse_args()
    triple = LookaheadConfig.parse(args.lookahead)
    prompts = held_out_prompts(args.prompts)
    print(f"{len(prompts)} held-out prompts, {triple.describe()}\n")
    print("| temperature | tokens | S | distinct 4-grams | accepted / drafted | tokens/s |")
    print("|---|---|---|---|---|---|")
    with LLM(args.model_dir, lookahead=triple, dtype="float32") as llm:
        for temperature in (0.0, 0.5):
            params = SamplingParams(args.max_output_len, temperature, seed=1)
            t = measure(llm, prompts, params)
            print(
                f"| {temperature} | {t.output_tokens} | {t.tokens_per_step:.2f} "
                f"| {t.distinct_4grams or 0:.2f} | {t.accepted} / {t.drafted} "
                f"| {t.tokens_per_s:.0f} |"
            )


if __name__ == "__main__":
    main()
