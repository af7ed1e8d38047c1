"""Forwards and choices of a library that was built with sanitizers, in a process of its own.

Run as `python -m tests.support.sanitized_forwards LIBRARY`; a finding ends the process with an
error. What the forwards compute is tested elsewhere: here they must only stay inside their arrays.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from typing import Any

import numpy as np
import torch

from tests.support.compiled import (
    KINDS,
    config_of,
    draft_of,
    filled,
    name_of,
    native_of,
    text,
    weights_of,
)
from tests.support.head_reference import eagle_config, random_head
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.models.cpu import library as native
from trtla.runtime.models.cpu.llama import NativeLlama, native_problem
from trtla.runtime.models.heads.head_model import HeadFeed
from trtla.runtime.models.heads.native_head import NativeHead
from trtla.runtime.models.kv_cache import SlotTable
from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sequence import Feed
from trtla.runtime.threads import set_threads
from trtla.settings.sampling import SamplingParams

NAN, INF = float("nan"), float("inf")
HEATS = [5e-324, 1e-39, 0.7, 1e300]
SETTINGS = [
    SamplingParams(temperature=heat, top_k=top_k, top_p=top_p)
    for heat, top_k, top_p in itertools.product(HEATS, [0, 1, 7, 2**62], [1e-12, 0.9, 1.0])
]


def step(model: NativeLlama, prompts: list[tuple[int, ...]], chunks: int) -> torch.Tensor:
    """Prompts in chunks, then a tree, a chain and a single token beside each other."""
    vocab = model.config.vocab_size
    cache, running, _ = filled(model, prompts, chunks)
    tree = draft_of([(token % vocab, 7 * token + 1) for token in text(9, 29)])
    drafts = [tree, Draft.chain(text(4, 5, vocab)), NO_DRAFT]
    feeds = [Feed.step(s, draft) for s, draft in zip(running, drafts, strict=False)]
    return torch.as_tensor(model.forward(feeds, cache).logits)


def choose(model: NativeLlama, logits: torch.Tensor) -> None:
    """Every way to choose from every row."""
    for row in range(len(logits)):
        tokens = [model.row_sampler.most_probable(logits.numpy(), row)]
        tokens += [model.row_sampler.draw(logits.numpy(), row, params, 0.37) for params in SETTINGS]
        assert all(NO_TOKEN <= token < logits.shape[1] for token in tokens)


def rows(size: int) -> torch.Tensor:
    """Logits of all sorts."""
    torch.manual_seed(0)
    found = torch.randn(8, size)
    for row, value in enumerate([NAN, INF, -INF, 3e38, -3e38, 0.0]):
        found[row, size // 2] = value
        found[row, -1] = value
    found[6], found[7] = -INF, NAN
    return found


def draft(target: NativeLlama, **keys: Any) -> None:
    """A head's forwards of two texts: many pairs beside one, then one of each."""
    config = eagle_config(**keys)
    head = NativeHead(random_head(config), config, target)
    taps = np.ones((len(head.taps), 41, target.config.hidden_size), np.float32)
    cache, states = head.new_cache(4), head.fuse(taps)
    tables = [SlotTable.of((2, 0)), SlotTable.of((3,))]
    for pairs in (((0, 40), (0, 1)), ((40, 1), (1, 1))):
        feeds = [
            HeadFeed(table, 9, cached, [3] * count, states[:count])
            for table, (cached, count) in zip(tables, pairs, strict=True)
        ]
        head.forward(feeds, cache)


def main() -> None:
    """Go through models, arithmetics and threads."""
    library = native.NativeLibrary(ctypes.CDLL(sys.argv[1]))
    native.library = lambda: library  # type: ignore[assignment]
    for number, kind in enumerate(KINDS):
        config = config_of(**KINDS[kind])
        prompts = [text(i, length, config.vocab_size) for i, length in enumerate((70, 33, 1))]
        for dtype in (torch.float32, torch.bfloat16):
            if native_problem(config, name_of(dtype)):
                continue
            set_threads(1 + number % 3)
            stored = (torch.float32, torch.bfloat16, torch.float16)[number % 3]
            int8 = number % 2 == 1
            model = native_of(config, weights_of(config, stored), dtype, int8_cache=int8)
            logits = step(model, prompts, 1 + number % 4)
            choose(model, logits[:2].contiguous())
    whole = native_of(config_of(), weights_of(config_of()), torch.float32)
    draft(whole)
    draft(whole, vocab_size=9, flags=("fc_norm", "norm_before_residual", "norm_output"))
    for config in (config_of(), config_of(**KINDS["experts"])):
        broken = ((name, tensor * NAN) for name, tensor in weights_of(config))
        model = native_of(config, broken, torch.float32)
        logits = step(model, [text(1, 40)], 1)[:2].contiguous()
        choose(model, logits)
        assert model.row_sampler.most_probable(logits.numpy(), 1) == NO_TOKEN
    for size in (1, 2, 15, 16, 17, 75, 333):
        choose(model, rows(size))
    print("clean")


if __name__ == "__main__":
    main()
