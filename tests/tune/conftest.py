"""The shipped model with room for triples up to (5,4,5), and samples of its bench sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trtla import LLM, LookaheadConfig
from trtla.tune.acceptance import Acceptance, plain_jobs
from trtla.tune.measurements import Measurements
from trtla.tune.samples import Sample

LIMIT = LookaheadConfig(5, 4, 5)
FOREVER = float("inf")


@pytest.fixture(scope="session")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(tiny_llama, lookahead=LIMIT, dtype="float32", max_batch_size=4) as opened:
        opened.end_ids = frozenset()
        yield opened


def learnt(llm: LLM, samples: list[Sample], folder: Path) -> Acceptance:
    """Acceptance that knows the samples' texts."""
    acceptance = Acceptance(samples, Measurements(folder, "key"))
    assert acceptance.run(llm, plain_jobs(samples), FOREVER)
    return acceptance
