"""A tiny random Llama for the tests that need a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import make_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a byte tokenizer."""
    return make_model(tmp_path_factory.mktemp("explained"))
