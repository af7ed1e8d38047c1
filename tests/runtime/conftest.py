"""The shipped model, opened once for all tests of a file that only decode with it; own caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trtla import LLM
from trtla.files import user_cache


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(tiny_llama, dtype="float32") as opened:
        yield opened


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache of the test's own, which holds the compiled libraries alone."""
    folder = tmp_path / "own-cache"
    (folder / "trtla").mkdir(parents=True)
    for library in user_cache().glob("*.so"):
        (folder / "trtla" / library.name).symlink_to(library.resolve())
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
