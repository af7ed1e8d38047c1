"""A real server on the shipped model, in a thread of the test's process, over a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import trtla
from tests.support.served import SHIPPED, Served, serving
from trtla import LLM, SamplingParams


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    with serving() as one:
        yield one


@pytest.fixture(scope="package")
def plain() -> Iterator[Callable[..., str]]:
    """Plain decoding of one prompt alone, in this process."""
    with LLM(SHIPPED, lookahead=trtla.LookaheadConfig(1, 1, 0)) as llm:

        def decode(prompt, length=16, temperature=0.0, seed=0, **more) -> str:
            sampling = SamplingParams(length, temperature, seed=seed, **more)
            (done,) = llm.generate(prompt, sampling)
            return done.text

        yield decode
