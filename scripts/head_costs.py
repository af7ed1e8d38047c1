#!/usr/bin/env python3
"""What an EAGLE-3 head's forward costs beside a step on the CPU, in shapes of real models.

    .venv/bin/python scripts/head_costs.py [--shapes 135M,8B] [--types Q4_0] [--threads 2]

Weights are random. Each forward of the head comes right behind a step, which drives its weights out
of the caches as when it drafts; medians. A step of all layers is extrapolated from two depths.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from real_sizes_files import SHAPES
from scale_llama_weights import Shape
from step_costs import Steps

from trtla.formats.config import CheckpointConfig
from trtla.formats.heads.head import EagleConfig, Head
from trtla.machine import cpu
from trtla.runtime.models.cpu.levels import own_levels
from trtla.runtime.models.heads.head_model import HeadFeed
from trtla.runtime.models.heads.native_head import NativeHead
from trtla.runtime.threads import num_threads, set_threads

SHAPES["135M"] = Shape(49152, 576, 30, 9, 3, 64, 1536)
_DEPTHS = (4, 8)
_CACHED = 192
_TAPS = 3


def random_head(target: CheckpointConfig, vocabulary: int) -> tuple[Head, EagleConfig]:
    """Make a head with the target's sizes and a draft vocabulary."""
    sizes = {"vocab_size": vocabulary, "num_hidden_layers": 1}
    layer, hidden = target.model_copy(update=sizes), target.hidden_size
    config = EagleConfig(layer, target.vocab_size, hidden, (1, 2, 3))
    queries, keys = (
        count * target.head_size
        for count in (target.num_attention_heads, target.num_key_value_heads)
    )
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (hidden, _TAPS * hidden),
        **dict.fromkeys(("embedding_norm", "hidden_norm", "post_norm", "norm"), (hidden,)),
        "q": (queries, 2 * hidden),
        "k": (keys, 2 * hidden),
        "v": (keys, 2 * hidden),
        "o": (hidden, queries),
        "gate": (target.intermediate_size, hidden),
        "up": (target.intermediate_size, hidden),
        "down": (hidden, target.intermediate_size),
        "lm_head": (vocabulary, hidden),
    }
    noise = np.random.default_rng(0)

    def tensor(shape: tuple[int, ...]) -> Callable[[], np.ndarray]:
        if len(shape) == 1:
            return lambda: np.ones(shape, np.float32)
        return lambda: noise.standard_normal(shape, np.float32) * shape[1] ** -0.5

    ids = np.arange(vocabulary) if vocabulary < target.vocab_size else None
    tensors = {name: tensor(shape) for name, shape in shapes.items()}
    return Head("random", config, tensors, ids), config


class HeadSteps:
    """A head behind the steps of its target."""

    def __init__(self, steps: Steps, vocabulary: int) -> None:
        head, config = random_head(steps.model.config, vocabulary)
        self._steps, self._head = steps, NativeHead(head, config, steps.model)
        self._cache, hidden = self._head.new_cache(64), config.target_hidden_size
        self._table = self._cache.table(tuple(range(63)))
        self._states = np.random.default_rng(1).standard_normal((256, hidden)).astype(np.float32)
        self.nbytes = self._head.weight_bytes

    def pairs(self, count: int) -> float:
        """Return the seconds of so many pairs behind a step."""
        feed = HeadFeed(self._table, 0, _CACHED, (1,) * count, self._states[:count])
        return self._behind_a_step(lambda: self._head.forward([feed], self._cache))

    def fuse(self, count: int) -> float:
        states = np.stack([self._states[:count]] * _TAPS)
        return self._behind_a_step(lambda: self._head.fuse(states))

    def _behind_a_step(self, work: Callable[[], object]) -> float:
        self._steps.seconds(1)
        started = time.perf_counter()
        work()
        return time.perf_counter() - started


def row(shape: str, kind: str, vocabulary: int, rounds: int) -> str:
    """Measure a shape: milliseconds of a step, of a head's pairs, and the share of one."""
    layers, least = SHAPES[shape].num_hidden_layers, []
    for depth in _DEPTHS:
        steps = Steps(shape, depth, kind, 1)
        least.append(median(steps.seconds(1) for _ in range(rounds)))
    each = (least[1] - least[0]) / (_DEPTHS[1] - _DEPTHS[0])
    whole = least[1] + each * (layers - _DEPTHS[1])
    head = HeadSteps(steps, vocabulary)
    one, four, fuse = (
        median(call(count) for _ in range(rounds))
        for call, count in ((head.pairs, 1), (head.pairs, 4), (head.fuse, 1))
    )
    figures = (whole, one, four, fuse)
    cells = " | ".join(f"{1e3 * seconds:.2f}" for seconds in figures)
    size = f"{head.nbytes / 1e6:.0f} MB"
    return f"| {shape}, {kind} | {vocabulary} | {size} | {cells} | {one / whole:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", default="135M,8B", help=", ".join(SHAPES))
    parser.add_argument("--types", default="Q4_0")
    parser.add_argument("--draft-vocabulary", default="8192,32000")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    set_threads(asked.threads)
    print(f"{cpu().model}, {own_levels()[-1].name}, {num_threads()} threads\n")
    names = ("target", "draft vocabulary", "head", "step, ms", "pair", "4 pairs", "fuse", "share")
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for shape in asked.shapes.split(","):
        for kind in asked.types.split(","):
            for vocabulary in asked.draft_vocabulary.split(","):
                print(row(shape, kind, int(vocabulary), asked.rounds), flush=True)


if __name__ == "__main__":
    main()
