"""One job that nothing disturbed, for the tests that compare with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extras.batch.support import batch, mixed, write


@pytest.fixture(scope="package")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Its input and its folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    source = write(folder / "in.jsonl", mixed(300))
    ran = batch(source, folder / "out", "-q")
    assert ran.code == 1, ran.err
    return source, folder / "out"
