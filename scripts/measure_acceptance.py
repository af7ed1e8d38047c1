#!/usr/bin/env python3
"""Step compression S and fed tokens a step of the shipped model: by triple, options, temperature.

    .venv/bin/python scripts/measure_acceptance.py --prompts code,chat --lookahead 7,7,7 3,4,2 \
        --draft default cells=drawn reference --temperature 0 0.8

Prompts are shipped sets of trtla bench, or `held-out`: the beginnings of functions and classes in
the held-out files of the Python standard library (scripts/tiny_llama_data.py says which). Greedy
text of small models loops, which flatters S: the share of distinct 4-grams stands beside it, and
the sampled figures are the honest ones. All figures but tokens/s are counts: a busy machine does no
harm. Texts must be the same for all triples and options; the script stops where one is not.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tiny_llama_data import held_out_files, read_texts

import trtla
from trtla import LLM, Completion, DraftOptions, LookaheadConfig, SamplingParams
from trtla.data.prompt_sets import load_sets
from trtla.results.metrics import Metrics

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
_START = re.compile(r"^(?:    )?(?:def|class) ", re.MULTILINE)
_BEFORE, _AFTER = 500, 60  # characters of a prompt before and after the start of the definition
_KINDS = {"int": int, "bool": bool, "Cells": str}


def held_out_prompts(number: int, seed: int = 0) -> list[str]:
    """Stretches of held-out source that end shortly after a `def` or `class`."""
    prompts = [
        text[max(0, match.start() - _BEFORE) : match.start() + _AFTER]
        for text in read_texts(held_out_files())
        for match in _START.finditer(text)
        if match.start() >= _BEFORE
    ]
    return random.Random(seed).sample(prompts, min(number, len(prompts)))


def shipped_prompts(names: str, number: int) -> list[str]:
    """The first prompts of each of the shipped sets."""
    sets = load_sets(names.split(","), (), number)
    return [text for one in sets for text in one.texts]


def draft_options(text: str) -> DraftOptions:
    """`cells=drawn,reference` or `default` as options."""
    kinds = {field.name: _KINDS[str(field.type)] for field in fields(DraftOptions)}
    given: dict[str, Any] = {}
    for part in text.split(",") if text != "default" else ():
        name, equals, value = part.partition("=")
        given[name] = kinds[name](value) if equals else True
    return DraftOptions(**given)


def row(done: Sequence[Completion], seconds: float) -> str:
    """The figures of one table row."""
    t = Metrics.of(done, seconds)
    return (
        f"{t.output_tokens} | {t.tokens_per_step:.3f} | {t.fed_per_step or 0:.1f} | "
        f"{t.distinct_4grams or 0:.2f} | {t.accepted} / {t.drafted} | {t.tokens_per_s:.0f}"
    )


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model-dir", type=Path, default=SHIPPED)
    parser.add_argument("--lookahead", nargs="+", default=["7,7,7"])
    parser.add_argument("--draft", nargs="+", default=["default"])
    parser.add_argument("--temperature", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--prompts", default="held-out", help="held-out, or code,chat,...")
    parser.add_argument("--num-prompts", type=int, default=24, help="of a set")
    parser.add_argument("--max-output-len", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=1, help="1: as a single user sees it")
    return parser.parse_args()


def measure(args: argparse.Namespace, llm: LLM, prompts: list[str], heat: float) -> tuple[Any, str]:
    """Decode the prompts, `batch_size` at a time; the texts and their table row."""
    params = SamplingParams(args.max_output_len, heat, seed=1)
    started, done = time.perf_counter(), []
    for start in range(0, len(prompts), args.batch_size):
        done += llm.generate(prompts[start : start + args.batch_size], params)
    return [c.output_ids for c in done], row(done, time.perf_counter() - started)


def main() -> None:
    """Print a table: one row a triple, set of options and temperature."""
    args = parse_args()
    held_out = args.prompts == "held-out"
    prompts = (
        held_out_prompts(args.num_prompts)
        if held_out
        else shipped_prompts(args.prompts, args.num_prompts)
    )
    print(f"{len(prompts)} prompts ({args.prompts})\n")
    print("| triple | draft | temperature | tokens | S | fed a step | distinct 4-grams "
          "| accepted / drafted | tokens/s |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    texts: dict[float, Any] = {}
    for triple in args.lookahead:
        for draft in args.draft:
            for heat in args.temperature:
                with LLM(
                    args.model_dir,
                    lookahead=LookaheadConfig.parse(triple) if triple != "auto" else "auto",
                    dtype="float32",
                    max_batch_size=args.batch_size,
                    draft_options=draft_options(draft),
                ) as llm:
                    said, figures = measure(args, llm, prompts, heat)
                print(f"| {triple} | {draft} | {heat} | {figures} |", flush=True)
                if texts.setdefault(heat, said) != said:
                    raise SystemExit(f"{triple} {draft}: a text differs from the first row's")


if __name__ == "__main__":
    main()
