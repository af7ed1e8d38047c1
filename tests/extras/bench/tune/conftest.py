"""The shipped model with room for triples up to (5,4,5), and samples of its bench sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.data.prompt_sets import load_sets
from trtla.extras.bench.tune.grid import Groups, Sample

LIMIT = LookaheadConfig(5, 4, 5)
FOREVER = float("inf")


@pytest.fixture(scope="session")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(tiny_llama, lookahead=LIMIT, dtype="float32", max_batch_size=4) as opened:
        opened.end_ids = frozenset()
        yield opened


def make_groups(llm: LLM, count: int, length: int = 16, temperature: float = 0.0) -> Groups:
    """So many samples of code and of chat."""
    sampling = SamplingParams(length, temperature)
    return {
        one.category: [
            Sample(one.category, number, llm.encode(text)[:32], sampling)
            for number, text in enumerate(one.texts)
        ]
        for one in load_sets(("code", "chat"), (), count)
    }
