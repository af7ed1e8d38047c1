"""Section `texts` of scripts/gpu_probe: what the shipped model writes on a GPU.

The same prompts on the CPU, by graphs and by PyTorch's operations, plainly and with drafts,
greedy and sampled. In float32 all texts are equal; in bfloat16 rounding depends on how many
tokens are fed, so a text may differ where the two largest logits are near each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from unittest.mock import patch

from gpu_probe.device import DEVICE, DRY
from gpu_probe.figures import record

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.data.prompt_sets import load_sets, mixed
from trtla.files import ASSETS
from trtla.llm.llm import Completion
from trtla.results.run import divergence

PLAIN = LookaheadConfig(1, 1, 0)
TRIPLES = [LookaheadConfig(3, 4, 2)] + [LookaheadConfig(7, 7, 7)] * (not DRY)
HEATS = (0.0, 0.7)
PROMPTS, TOKENS, BATCH = (2, 8, 2) if DRY else (10, 96, 8)
"""Prompts of each shipped set, tokens of a text, texts at a time."""
Texts = dict[float, list[list[Completion]]]
"""By temperature: plain decoding's, then those of each triple."""


def cuda_path(path: str) -> AbstractContextManager[object]:
    """Models that are opened inside run by `auto` or by PyTorch's `plain` operations."""
    return patch.dict(os.environ, TRTLA_CUDA_PATH=path)


def texts() -> None:
    """Compare the shipped model's texts."""
    cpu = _texts("cpu", "float32", [])
    for name, path in (
        ("texts in float32 as the CPU's", "auto"),
        ("texts in float32, PyTorch's operations", "plain"),
    ):
        with cuda_path(path):
            found = _texts(str(DEVICE), "float32", TRIPLES)
        record(name, _equal(found, cpu))
    if DRY:
        return
    found = _texts(str(DEVICE), "bfloat16", TRIPLES)
    record("texts in bfloat16 as plain decoding's", _equal(found, found))
    record("largest margin of a differing text", max(_margins(found), default=0.0))


def _texts(device: str, dtype: str, triples: Sequence[LookaheadConfig]) -> Texts:
    prompts = [one.turns[0] for one in mixed(load_sets(["code", "chat"], [], PROMPTS))]
    with LLM(
        str(ASSETS / "tiny-llama"),
        lookahead=LookaheadConfig(7, 7, 7),
        device=device,
        dtype=dtype,
        max_batch_size=BATCH,
    ) as llm:
        print(llm.description, flush=True)
        return {
            heat: [
                llm.generate(
                    prompts, SamplingParams(TOKENS, heat, seed=3), triple, margins=triple == PLAIN
                )
                for triple in (PLAIN, *triples)
            ]
            for heat in HEATS
        }


def _equal(found: Texts, expected: Texts) -> float:
    """The share of texts that are the plain ones of `expected`."""
    pairs = [pair for heat in HEATS for pair in _pairs(found[heat], expected[heat][0])]
    return sum(ours.output_ids == plain.output_ids for ours, plain in pairs) / len(pairs)


def _margins(found: Texts) -> Iterator[float]:
    """Print where texts differ from plain decoding's; the greedy ones' margins."""
    for heat in HEATS:
        for ours, plain in _pairs(found[heat][1:], found[heat][0]):
            if different := divergence(ours, plain):
                print(f"temperature {heat}, prompt {ours.index}: {different.describe()}")
                if heat == 0.0 and different.margin is not None:
                    yield different.margin


def _pairs(
    found: Sequence[list[Completion]], plain: list[Completion]
) -> list[tuple[Completion, Completion]]:
    return list(chain.from_iterable(zip(texts, plain, strict=True) for texts in found))
