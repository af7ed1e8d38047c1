"""Compare ranks with threads of one process, in turns, on the same cores.

    python scripts/measure_ranks.py --model-dir big --tp-size 2 [--rounds 5] [--dtype float32]
    python scripts/measure_ranks.py --model-dir big --tp-size 2 --lookahead-parallel 2 \\
        --cores-of-one-rank

Prints tokens a second of plain decoding, of the default drafts, of the triple 7,7,7 and of reading
a prompt, the ratios to one process, and how many texts are equal. Ranks that have a machine each
have more cores than one process has: --cores-of-one-rank gives that as many threads as one rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from trtla.llm.llm import LLM
from trtla.machine import usable_cores
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

_PROMPTS = (
    "Why is the sky blue?",
    "List the planets of the solar system, then list them once more in reverse.",
    "Write a Python function that adds two numbers.",
    "Once upon a time there was a king who",
)
_LONG = 512
_TRIPLE = LookaheadConfig(7, 7, 7)
_Texts = list[tuple[int, ...]]
_Arm = tuple[LLM, int]


def decode(llm: LLM, drafter: str, tokens: int, batch: int) -> tuple[float, _Texts]:
    """Tokens a second after the first, and the texts."""
    drafting = DrafterSettings("none") if drafter == "none" else None
    triple = _TRIPLE if drafter == "7,7,7" else None
    sampling = SamplingParams(max_output_len=tokens)
    prompts = [(_PROMPTS * batch)[place] for place in range(batch)]
    first: float | None = None
    texts: dict[int, list[int]] = {}
    count = 0
    for chunk in llm.stream(prompts, sampling, triple, drafter=drafting):
        now = time.perf_counter()
        if first is None:
            first, count = now, -len(chunk.token_ids)
        count += len(chunk.token_ids)
        texts.setdefault(chunk.index, []).extend(chunk.token_ids)
    assert first is not None
    return count / (now - first), [tuple(texts[place]) for place in sorted(texts)]


def read(llm: LLM, seed: int) -> tuple[float, _Texts]:
    """Prompt tokens a second, and what follows them."""
    ids = torch.randint(5, 1000, (_LONG,), generator=torch.Generator().manual_seed(seed)).tolist()
    started = time.perf_counter()
    done = llm.generate([ids], SamplingParams(max_output_len=1))
    return _LONG / (time.perf_counter() - started), [tuple(done[0].output_ids)]


def measured(
    llm: LLM, threads: int, what: str, args: argparse.Namespace, seed: int
) -> tuple[float, _Texts]:
    """One figure of one arm."""
    torch.set_num_threads(threads)
    return read(llm, seed) if what == "prompt" else decode(llm, what, args.tokens, args.batch_size)


def turns(arms: Sequence[_Arm], what: str, args: argparse.Namespace) -> str:
    """A line of the table: all arms in turns, the others beside the first."""
    for llm, threads in arms:  # costs are measured, memory is taken
        measured(llm, threads, what, args, 0)
    rounds = [[measured(*arm, what, args, turn) for arm in arms] for turn in range(args.rounds)]
    cells = [f"{statistics.median(found[0][0] for found in rounds):.1f}"]
    for place in range(1, len(arms)):
        ratios = sorted(found[place][0] / found[0][0] for found in rounds)
        pairs = [
            one == other
            for found in rounds
            for one, other in zip(found[0][1], found[place][1], strict=True)
        ]
        cells += [
            f"{statistics.median(found[place][0] for found in rounds):.1f}",
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            f"{sum(pairs)} of {len(pairs)}",
        ]
    return f"| {what} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--tp-size", type=int)
    parser.add_argument("--lookahead-parallel", type=int)
    parser.add_argument("--cores-of-one-rank", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=1)
    args = parser.parse_args(argv)
    kinds = {name: getattr(args, name) for name in ("tp_size", "lookahead_parallel")}
    kinds = {name: size for name, size in kinds.items() if size}
    if not kinds:
        parser.error("give --tp-size, --lookahead-parallel, or both")
    each = max(1, usable_cores() // max(kinds.values()))
    alone = each if args.cores_of_one_rank else usable_cores()
    with ExitStack() as opened:
        one = opened.enter_context(LLM(args.model_dir, dtype=args.dtype))
        arms = [(one, alone)]
        for name, size in kinds.items():
            ranks = opened.enter_context(LLM(args.model_dir, dtype=args.dtype, **{name: size}))
            arms.append((ranks, each))
        print(f"{one.description}; {alone} threads, against ranks of {each}")
        names = [f"{name} {size} | ratio (least to most) | equal" for name, size in kinds.items()]
        print(f"| what | one process | {' | '.join(names)} |")
        print("|" + " --- |" * (2 + 3 * len(kinds)))
        for what in ("none", "auto", "7,7,7", "prompt"):
            print(turns(arms, what, args), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
