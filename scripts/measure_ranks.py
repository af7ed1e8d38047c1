"""Compare ranks with threads of one process, in turns, on the same cores.

    python scripts/measure_ranks.py --model-dir big --tp-size 2 [--rounds 5] [--dtype float32]
    python scripts/measure_ranks.py --model-dir big --lookahead-parallel 2 --cores-of-one-rank

Prints tokens a second of plain decoding, of the default drafts, of the triple 7,7,7 and of reading
a prompt, their ratio, and how many texts are equal. Ranks that have a machine each have more cores
than one process has: --cores-of-one-rank compares with as many threads as one rank has.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-dir", required=True)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--tp-size", type=int, default=2)
    kinds.add_argument("--lookahead-parallel", type=int)
    parser.add_argument("--cores-of-one-rank", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=1)
    args = parser.parse_args(argv)
    cores = usable_cores()
    size = args.lookahead_parallel or args.tp_size
    each = max(1, cores // size)
    alone = each if args.cores_of_one_rank else cores
    kind = {"lookahead_parallel": size} if args.lookahead_parallel else {"tp_size": size}
    with (
        LLM(args.model_dir, dtype=args.dtype) as one,
        LLM(args.model_dir, dtype=args.dtype, **kind) as ranks,
    ):
        arms = ((one, alone), (ranks, each))
        print(f"{one.description}; {alone} threads, against {ranks.description}, of {each}")
        print("| what | one process | ranks | ratio, median (least to most) | equal texts |")
        print("| --- | ---: | ---: | --- | ---: |")
        for what in ("none", "auto", "7,7,7", "prompt"):
            for llm, threads in arms:  # costs are measured, memory is taken
                measured(llm, threads, what, args, 0)
            rates: list[list[float]] = [[], []]
            same = total = 0
            for turn in range(args.rounds):
                found = [measured(llm, threads, what, args, turn) for llm, threads in arms]
                for rate, (figure, _) in zip(rates, found, strict=True):
                    rate.append(figure)
                same += sum(a == b for a, b in zip(found[0][1], found[1][1], strict=True))
                total += len(found[0][1])
            ratios = sorted(b / a for a, b in zip(*rates, strict=True))
            middle = [statistics.median(rate) for rate in rates]
            print(
                f"| {what} | {middle[0]:.1f} | {middle[1]:.1f} | {statistics.median(ratios):.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f}) | {same} of {total} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
