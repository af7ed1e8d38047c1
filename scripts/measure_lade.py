#!/usr/bin/env python3
"""The first implementation of lookahead decoding, the package lade 0.0.2, beside trtla: in turns.

    python3.11 -m venv LADE
    LADE/bin/pip install lade==0.0.2 transformers==4.34.1 'numpy<2' torch==2.13.0
    .venv/bin/python scripts/measure_lade.py --lade-python LADE/bin/python [--dtype float32]

lade needs an old transformers, so it runs in a process of its own, which stays open: prompts go to
it as token ids, and it times itself. Greedy, one prompt at a time; all arms take turns on each
prompt (A B A B), figures are medians over rounds, ratios are those of the same round. `lade plain`
is generate of that transformers. lade's pool is filled from the window only, not from the prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

LADE_PLAIN = "lade plain"


def serve(folder: str, dtype: str, threads: int, rope_theta: float) -> None:
    """Decode in lade's Python: a JSON line in, a JSON line out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    import lade
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    lade.augment_all()
    code = {"trust_remote_code": False}
    config = LlamaConfig.from_pretrained(folder, rope_theta=rope_theta, rope_scaling=None, **code)
    own = {"config": config, "torch_dtype": getattr(torch, dtype)}
    model = LlamaForCausalLM.from_pretrained(folder, **own, **code).eval()
    model.generation_config.eos_token_id = None
    fed: list[int] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: fed.append(args[0].shape[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        fed.clear()
        found, seconds = _generate(lade, model, asked)
        answer = {"ids": found, "seconds": seconds, "forwards": len(fed), "fed": sum(fed[1:])}
        print(json.dumps(answer), file=answers, flush=True)


def _generate(lade: Any, model: Any, asked: dict[str, Any]) -> tuple[list[int], float]:
    import torch

    os.environ["USE_LADE"] = str(int(asked["triple"] is not None))
    if asked["triple"] is not None:
        window, level, guesses = asked["triple"]
        lade.config_lade(WINDOW_SIZE=window, LEVEL=level, GUESS_SET_SIZE=guesses, DEBUG=0)
    ids = torch.tensor([asked["ids"]])
    lengths = {"max_new_tokens": asked["max_output_len"], "do_sample": False, "pad_token_id": 0}
    start = time.perf_counter()
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **lengths)
    return found[0, ids.shape[1] :].tolist(), time.perf_counter() - start


class LadeArm:
    """lade with a triple, or the plain generate below it."""

    own, setting = False, None

    def __init__(self, process: subprocess.Popen[str], triple: Any) -> None:
        self._process = process
        self._triple = None if triple is None else triple.as_tuple()
        self.name = LADE_PLAIN if triple is None else f"lade {triple}"

    def takes(self, batch_size: int) -> bool:
        """It decodes one prompt at a time."""
        return batch_size == 1

    def warm_up(self, prompts: Sequence[Any], sampling: Sequence[Any]) -> None:
        """Decode untimed."""
        self.decode(prompts, sampling)

    def decode(self, prompts: Sequence[Any], sampling: Sequence[Any]) -> Any:
        """Decode one prompt."""
        from trtla.bench.arms import Run

        asked = {"ids": prompts[0], "triple": self._triple}
        asked["max_output_len"] = sampling[0].max_output_len
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("error: lade's process ended\nhint: its messages are above")
        answer = json.loads(line)
        seconds, forwards = answer["seconds"], answer["forwards"]
        return Run(
            outputs=(tuple(answer["ids"]),),
            time_s=seconds,
            first_s=(seconds,),  # it does not report when its first token came
            last_s=(seconds,),
            steps=forwards - 1,
            fed=answer["fed"],
            forwards=forwards,
        )


def measure(args: argparse.Namespace, dtype: str) -> None:
    """Print one table."""
    from trtla import LLM, SamplingParams
    from trtla.bench.arms import engine_arms
    from trtla.bench.opened import measure as in_turns
    from trtla.data.encoder import Encoder
    from trtla.data.prompt_sets import batches, load_sets
    from trtla.results.bench_documents import Cell
    from trtla.settings.lookahead import LookaheadConfig

    triples = [LookaheadConfig.parse(text) for text in args.lookahead]
    server = LookaheadConfig(*map(max, zip(*(t.as_tuple() for t in triples), strict=True)))
    with LLM(args.model_dir, lookahead=server, device="cpu", dtype=dtype, max_batch_size=1) as llm:
        sets = load_sets((args.set,), (), args.prompts)
        room = llm.limits.max_text_len - args.max_output_len
        encoder = Encoder(llm.tokenizer, room=room)
        prompts = [prompt for one in sets for prompt in encoder.questions(one.questions)]
        llm.tokenizer, llm.end_ids = None, frozenset()
        with _start(args, dtype, _rope_theta(llm.engine.config.pretrained_config)) as process:
            arms = engine_arms(llm, [*triples, "auto"])
            arms += [LadeArm(process, triple) for triple in (None, *triples)]
            cell = Cell(device="cpu", dtype=dtype, threads=args.threads, batch_size=1,
                        temperature=0.0, category=args.set)  # fmt: skip
            sampling = SamplingParams(args.max_output_len)
            found = in_turns(cell, arms, batches(prompts, 1), sampling, args.rounds)
    print(f"\n{dtype}, {args.threads} threads, {len(prompts)} prompts, {args.rounds} rounds\n")
    _print_table(found.runs)


def _start(args: argparse.Namespace, dtype: str, rope_theta: float) -> subprocess.Popen[str]:
    command = [args.lade_python, __file__, "--serve", "--model-dir", args.model_dir]
    options = ["--dtype", dtype, "--threads", str(args.threads), "--rope-theta", str(rope_theta)]
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, *options], stdin=pipe, stdout=pipe, text=True)


def _rope_theta(config: Any) -> float:
    """The base of the rotary embedding, of a model that the old transformers runs as well."""
    same_width = config.head_size * config.num_attention_heads == config.hidden_size
    if config.rope_type != "default" or config.attn_bias or config.mlp_bias or not same_width:
        raise SystemExit("error: lade's transformers does not run this kind of Llama")
    return float(config.rotary_base)


def _print_table(runs: dict[str, list[Any]]) -> None:
    from trtla.bench.arms import AR
    from trtla.results.metrics import agreement

    speeds = {name: [run.tokens_per_s for run in rounds] for name, rounds in runs.items()}
    best = max((n for n in runs if n.startswith("lade")), key=lambda name: median(speeds[name]))
    bases = (AR, LADE_PLAIN, best)
    print("| arm | tokens/s | min-max | S | fed/step | texts as ar |", end=" ")
    print(" | ".join(f"over {base}" for base in bases), "|\n" + "|---" * 9 + "|")
    for name, rounds in runs.items():
        run, rates = rounds[0], speeds[name]
        same = agreement(run, runs[AR][0])
        cells = [name, f"{median(rates):.0f}", f"{min(rates):.0f}-{max(rates):.0f}"]
        cells += [f"{run.tokens_per_step:.2f}", f"{run.fed_per_step:.1f}"]
        cells += [f"{same['equal_texts']} of {same['texts']}"]
        for base in bases:
            ratios = [mine / other for mine, other in zip(rates, speeds[base], strict=True)]
            cells.append(f"{median(ratios):.2f}")
        print("|", " | ".join(cells), "|")


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    shipped = Path(__file__).resolve().parents[1] / "trtla" / "assets" / "tiny-llama"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    serves = "--serve" in sys.argv
    parser.add_argument("--lade-python", required=not serves, help="the Python that has lade")
    parser.add_argument("--model-dir", type=Path, default=shipped)
    parser.add_argument("--lookahead", nargs="+", default=["4,4,4", "5,4,5", "7,7,7"])
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", default="code", help="a set of trtla bench, or a file")
    parser.add_argument("--prompts", type=int, default=12, help="of each category")
    parser.add_argument("--max-output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rope-theta", type=float, default=10000.0, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """A table a type, or lade's side of it."""
    args = parse_args()
    if args.serve:
        serve(str(args.model_dir), args.dtype, args.threads, args.rope_theta)
        return
    import torch

    torch.set_num_threads(args.threads)
    for dtype in args.dtype.split(","):
        measure(args, dtype)


if __name__ == "__main__":
    main()
