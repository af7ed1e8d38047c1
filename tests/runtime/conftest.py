"""The shipped model, opened once for all tests of a file that only decode with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trtla import LLM


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(tiny_llama, dtype="float32") as opened:
        yield opened
