#!/usr/bin/env python3
"""The milliseconds of a step by fed tokens on the CPU, for random weights in shapes of real models.

    .venv/bin/python scripts/step_costs.py [--shapes 1B,8B] [--types Q4_0,Q4_K,Q8_0] [--threads 2]

Layers are alike, so that eight of them tell what all cost. Sizes of steps take turns; each figure
is the least of the rounds, and stands beside the step of one token. Run it under `taskset` to
choose the cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import cache

import ml_dtypes
import numpy as np
from real_sizes_files import SHAPES, random_blocks

from trtla.formats.blocks import BLOCK_TYPES, BlockTensor
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import rank_plan
from trtla.machine import cpu
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import NO_DRAFT, Draft, NoDrafter
from trtla.runtime.models.cpu.levels import chosen_level
from trtla.runtime.models.cpu.library import library
from trtla.runtime.models.cpu.llama import NativeLlama
from trtla.runtime.models.cpu.packing import Source, pack_model
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as Running
from trtla.runtime.threads import num_threads, set_threads
from trtla.settings.lookahead import AUTOREGRESSIVE

PLAIN = "bfloat16"
"""The type of weights that are not in blocks."""
_CACHED = 192


def new_config(shape: str, layers: int) -> CheckpointConfig:
    """Make the config of a Llama of this shape, with so many layers at most."""
    size = SHAPES[shape]
    sizes = {
        "vocab_size": size.vocab_size or 49_152,
        "hidden_size": size.hidden_size,
        "num_hidden_layers": min(layers, size.num_hidden_layers),
        "num_attention_heads": size.num_attention_heads,
        "num_key_value_heads": size.num_key_value_heads,
        "head_size": size.head_dim,
        "intermediate_size": size.intermediate_size,
    }
    known = {"architecture": "LlamaForCausalLM", "dtype": PLAIN, "max_position_embeddings": 8192}
    return CheckpointConfig.model_validate({**known, **sizes})


def random_weights(config: CheckpointConfig, kind: str) -> Iterator[tuple[str, Source]]:
    """Yield the weights; those of one shape are the same."""

    @cache
    def matrix(outputs: int, inputs: int) -> Source:
        noise = np.random.default_rng(0)
        if kind == PLAIN:
            numbers = noise.standard_normal((outputs, inputs), np.float32) * inputs**-0.5
            return numbers.astype(ml_dtypes.bfloat16)
        return BlockTensor(BLOCK_TYPES[kind], random_blocks(noise, kind, outputs, inputs))

    for target in rank_plan(config, 0):
        if len(target.shape) == 2:
            yield target.name, matrix(*target.shape)
        else:
            yield target.name, np.ones(target.shape, np.float32)


class Steps:
    """A model, and steps of one sequence behind cached tokens."""

    def __init__(self, shape: str, layers: int, kind: str, most: int) -> None:
        config = new_config(shape, layers)
        narrow = kind != PLAIN or library().has_bfloat16_products
        dtype = PLAIN if narrow else "float32"
        panels = pack_model(config, random_weights(config, kind), dtype)
        self.model = NativeLlama(config, panels, dtype)
        blocks = -(-(_CACHED + most) // TOKENS_PER_BLOCK) + 1
        self._cache = self.model.new_cache(blocks)
        self._text = Running(
            Request(0, (1,) * 8), AUTOREGRESSIVE, NoDrafter(), [1], _CACHED, tuple(range(blocks))
        )
        self.nbytes = self.model.weight_bytes

    def seconds(self, fed: int) -> float:
        """Run a step of so many tokens."""
        draft = Draft.chain((1,) * (fed - 1)) if fed > 1 else NO_DRAFT
        feed = Feed.step(self._text, draft)
        started = time.perf_counter()
        self.model.forward([feed], self._cache)
        return time.perf_counter() - started


def least_seconds(steps: Steps, sizes: Sequence[int], rounds: int) -> list[float]:
    """The shortest step of each size, in turns."""
    best = [float("inf")] * len(sizes)
    for _ in range(rounds):
        for index, fed in enumerate(sizes):
            best[index] = min(best[index], steps.seconds(fed))
    return best


def _numbers(text: str) -> list[int]:
    return list(map(int, text.split(",")))


def main() -> None:
    """Print a row for each shape and type, and the same relative to one token."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", default="1B,8B", help=", ".join(SHAPES))
    parser.add_argument(
        "--types", default="Q4_0,Q4_K,Q8_0", help=f"{PLAIN}, {', '.join(BLOCK_TYPES)}"
    )
    parser.add_argument("--layers", type=int, default=8, help="the most of a model")
    parser.add_argument("--fed", type=_numbers, default=_numbers("1,2,3,4,6,8,12,16,32"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    set_threads(asked.threads)
    level = chosen_level().name
    print(f"{cpu().model}, {level}, {num_threads()} threads, {_CACHED} tokens in the cache\n")
    print(f"| shape, layers | type | {' | '.join(map(str, asked.fed))} | GB/s of one |")
    print("|---" * (len(asked.fed) + 3) + "|")
    for shape in asked.shapes.split(","):
        for kind in asked.types.split(","):
            steps = Steps(shape, asked.layers, kind, max(asked.fed))
            times = least_seconds(steps, asked.fed, asked.rounds)
            layers = min(asked.layers, SHAPES[shape].num_hidden_layers)
            row = " | ".join(f"{1e3 * each:.2f}" for each in times)
            speed = steps.nbytes / times[0] / 1e9
            print(f"| {shape}, {layers} | {kind} | {row} | {speed:.1f} |")
            ratios = " | ".join(f"{each / times[0]:.2f}" for each in times)
            print(f"| | | {ratios} | |", flush=True)


if __name__ == "__main__":
    main()
