"""A tiny random Llama for the tests that need a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models import byte_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a byte tokenizer."""
    return byte_model(tmp_path_factory.mktemp("explained"))
