#!/usr/bin/env python3
"""Quantised weights: perplexity, speed and texts of trtla, and of llama.cpp on the same files.

    PYTHONPATH=LLAMA_CPP .venv/bin/python scripts/measure_quantised.py BF16.gguf Q8_0.gguf engine \\
        [--reference F32.gguf] [--texts FILE.jsonl] [--prompts FILE.jsonl] [--rounds 5] \\
        [--threads 2] [--output-json FILE] [--only perplexity,speed,texts] [--summary best]

The files, of one tokenizer, are GGUF files, engines, checkpoints or Hugging Face folders; what is
no GGUF file runs in trtla alone. Ratios are to the first one: give the bfloat16 weights there.

Perplexity is exp of the mean negative log probability, over all tokens but the first of each text.
A text is the beginning of a line, so many tokens long, with the tokenizer's beginning-of-sequence
token if it has one. Reference is a model in float32 arithmetic. Speed is measured in rounds in
which both programs and all files take turns; a figure is the median of the rounds, and a ratio the
median of the rounds' ratios, or both are of the best rounds: other work on the machine only adds
time. Tokens/s leave the prompt out, and a step is the best of some tries in a round. Texts are
greedy and compared token by token; where they part, the margin is that of the top two logits.
Adaptive drafting knows what steps cost from a file in the user's cache: set XDG_CACHE_HOME to a new
folder when the kernels have changed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from measure_quantised_programs import CONTEXT, LlamaCpp, Program, Trtla, opened
from measure_quantised_tables import (
    LLAMA_CPP,
    SIZES,
    TRTLA,
    Figures,
    File,
    Parted,
    Summary,
    print_figures,
    print_ratios,
    print_texts,
)

from trtla import LLM, TrtlaError
from trtla.data.calibration import texts
from trtla.data.prompt_sets import SHIPPED, Ids, load_sets
from trtla.errors import UsageError
from trtla.files import ASSETS
from trtla.formats.gguf.header import is_gguf
from trtla.machine import look

PARTS = ("perplexity", "speed", "texts")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Token ids of all that is read."""

    texts: list[Ids]
    prompts: list[Ids]
    long: Ids
    """The prompt that is timed; steps continue its beginning."""

    @property
    def room(self) -> int:
        """Tokens of the longest text, an output not counted."""
        return max(map(len, (*self.texts, *self.prompts, self.long)))


def read_inputs(llm: LLM, args: argparse.Namespace) -> Inputs:
    """Texts and prompts in the model's tokens.

    Raises:
        UsageError: a file is not usable, or holds too little text.
    """
    lines = list(texts(str(args.texts), args.num_texts))
    whole = [llm.encode(line) for line in lines]
    joined = llm.encode("\n\n".join(lines))[: args.prompt_len]
    if len(joined) < max(args.prompt_len, CONTEXT + max(SIZES)):
        raise UsageError(f"{args.texts} has {len(joined)} tokens", "lower --prompt-len")
    cut = [ids[: args.text_len] for ids in whole[: args.num_texts]]
    return Inputs(cut, list(_prompts(llm, args)), joined)


def _prompts(llm: LLM, args: argparse.Namespace) -> Iterator[Ids]:
    """Some of each category in turn; chats by the model's template."""
    sets = load_sets([str(args.prompts)] if args.prompts else SHIPPED, [], args.num_prompts)
    turns = chain.from_iterable(zip_longest(*(one.questions for one in sets)))
    templated = llm.tokenizer is not None and llm.tokenizer.has_chat_template
    for one in islice(filter(None, turns), args.num_prompts):
        text = one.turns[0]
        yield llm.encode([{"role": "user", "content": text}] if one.is_chat and templated else text)


def perplexity(program: Program, texts: Sequence[Ids]) -> float:
    """Over all texts together."""
    found = [value for ids in texts for value in program.log_probs(ids)]
    return math.exp(-sum(found) / len(found))


def speed_round(program: Program, figures: Figures, inputs: Inputs, args: Any) -> None:
    """Add a round's figures of one program."""
    chosen = inputs.prompts[: args.speed_prompts]
    done = [program.greedy(prompt, args.output_len) for prompt in chosen]
    figures.plain.append(sum(one.later for one in done) / sum(one.decoding_s for one in done))
    if isinstance(program, Trtla):
        more = [program.greedy(prompt, args.output_len, drafted=True) for prompt in chosen]
        figures.drafted.append(sum(one.later for one in more) / sum(one.decoding_s for one in more))
        same = all(a.ids == b.ids for a, b in zip(done, more, strict=True))
        figures.drafted_equal = figures.drafted_equal and same
    for size, seconds in program.step_s(SIZES, inputs.long).items():
        figures.steps[size].append(seconds)
    figures.prompt.append(program.prompt_s(inputs.long))


def compare_texts(file: File, inputs: Inputs, length: int) -> list[Parted]:
    """Where the two programs' greedy texts part."""
    parted: list[Parted] = []
    for number, prompt in enumerate(inputs.prompts):
        ours, theirs = (one.greedy(prompt, length, margins=True) for one in file.programs.values())
        pairs = enumerate(zip(ours.ids, theirs.ids, strict=True))
        place = next((at for at, (a, b) in pairs if a != b), None)
        if place is not None:
            margins = ours.margins[place], theirs.margins[place]
            parted.append(Parted(number, place, *margins))
    return parted


def measure(files: Sequence[File], inputs: Inputs, args: argparse.Namespace) -> None:
    """All parts that were asked for, files and programs in turns."""
    each = [(f.name, f.programs[name], f.found[name]) for f in files for name in f.programs]
    if "perplexity" in args.only:
        for name, program, figures in each:
            _say(f"perplexity of {name}")
            figures.perplexity = perplexity(program, inputs.texts)
    if "texts" in args.only:
        for file in files:
            if len(file.programs) > 1:
                _say(f"texts of {file.name}")
                file.parted = compare_texts(file, inputs, args.output_len)
    if "speed" in args.only:
        _say("speed, warming up")
        for _, program, _ in each:
            speed_round(program, Figures(None, None), inputs, args)
        for number in range(args.rounds):
            _say(f"speed, round {number + 1}")
            for _, program, figures in each:
                speed_round(program, figures, inputs, args)


def _say(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


def open_files(stack: ExitStack, args: argparse.Namespace) -> tuple[list[File], Inputs]:
    """All models, which stay open, and what they read.

    Raises:
        TrtlaError: a model cannot be opened, or llama.cpp does not load.
    """
    llms = {
        path: stack.enter_context(opened(path, args.dtype, args.kv_cache_dtype))
        for path in args.files
    }
    inputs = read_inputs(next(iter(llms.values())), args)
    files: list[File] = []
    for path, llm in llms.items():
        programs: dict[str, Program] = {TRTLA: Trtla(llm)}
        if is_gguf(path) and not args.without_llama_cpp:
            programs[LLAMA_CPP] = LlamaCpp(llm, inputs.room + args.output_len)
        found = {n: Figures(one.weight_bytes, one.weight_type) for n, one in programs.items()}
        files.append(File("/".join(path.parts[-2:]), programs, found))
    return files, inputs


def reference_perplexity(args: argparse.Namespace, inputs: Inputs) -> float | None:
    """That of the model in float32; None: there is none, or nobody asked."""
    if args.reference is None or "perplexity" not in args.only:
        return None
    _say(f"perplexity of {args.reference}")
    with opened(args.reference, "float32") as llm:
        return perplexity(Trtla(llm), inputs.texts)


def document(files: Sequence[File], reference: float | None, args: Any, inputs: Inputs) -> Any:
    """All that was measured, for a JSON file."""
    cpu = look().cpu
    return {
        "cpu": asdict(cpu),
        "arguments": {name: _plain(value) for name, value in vars(args).items()},
        "perplexity_positions": sum(len(ids) - 1 for ids in inputs.texts),
        "reference_perplexity": reference,
        "llama_cpp_without_amx": any(
            isinstance(program, LlamaCpp) and program.without_amx
            for file in files
            for program in file.programs.values()
        ),
        "files": [
            {
                "file": file.name,
                "programs": {name: asdict(one) for name, one in file.found.items()},
                "parted": file.parted and [asdict(one) for one in file.parted],
            }
            for file in files
        ],
    }


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--reference", type=Path, help="run in float32 for its perplexity")
    parser.add_argument("--dtype", default="auto", help="of activations in trtla")
    parser.add_argument(
        "--kv-cache-dtype", choices=("auto", "int8"), default="auto", help="likewise"
    )
    parser.add_argument("--texts", type=Path, default=ASSETS / "articles.jsonl")
    parser.add_argument("--num-texts", type=int, default=12)
    parser.add_argument("--text-len", type=int, default=512)
    parser.add_argument("--prompts", type=Path, help=".jsonl; default: the sets of trtla bench")
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--speed-prompts", type=int, default=4, help="of them, for tokens/s")
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=1000, help="of the prompt that is timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--summary", choices=("median", "best"), default="median")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--without-llama-cpp", action="store_true")
    parser.add_argument("--output-json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Print the tables; return 0, or 2 after one sentence on what is wrong."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    try:
        with ExitStack() as stack:
            files, inputs = open_files(stack, args)
            reference = reference_perplexity(args, inputs)
            measure(files, inputs, args)
            summary = Summary(best=args.summary == "best")
            print_figures(files, reference, summary)
            print_ratios(files, reference, summary)
            print_texts(files, len(inputs.prompts))
            if args.output_json:
                found = document(files, reference, args, inputs)
                args.output_json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    except (TrtlaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
