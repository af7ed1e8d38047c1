"""Fixtures of commands' tests: a tiny random Llama with a byte tokenizer, and an engine of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import trtla


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a tokenizer."""
    from tests.support.models import byte_model

    return byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def no_weights(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model without its weights: what is refused here was refused before they were wanted."""
    folder = tmp_path_factory.mktemp("empty") / "model"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture(scope="session")
def checkpoint(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model converted in float32."""
    folder = tmp_path_factory.mktemp("made") / "checkpoint"
    ran = trtla("convert", "--model-dir", model, "--output-dir", folder, "--dtype", "float32")
    assert ran.code == 0, ran.err
    return folder


@pytest.fixture(scope="session")
def engine(checkpoint: Path) -> Path:
    """An engine of (4,3,4) for 4 requests, 128 prompt tokens, 256 in all."""
    folder = checkpoint.parent / "engine"
    limits = ("--max-batch-size", "4", "--max-input-len", "128", "--max-seq-len", "256")
    ran = trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", folder,
        "--lookahead", "4,3,4", *limits,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return folder


@pytest.fixture(scope="session")
def bare_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of a model without tokenizer files."""
    from tests.support.models import byte_model

    folder = tmp_path_factory.mktemp("bare")
    byte_model(folder / "model", tokenizer=False)
    ran = trtla(
        "build", "--checkpoint-dir", folder / "model", "--output-dir", folder / "engine",
        "--lookahead", "3,3,3", "--dtype", "float32",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return folder / "engine"


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    """Two short articles."""
    lines = [
        {"article": "The old mill is open again. Many came.", "highlights": "The mill\nis open."},
        {"article": "A ferry did n't sail on Monday.", "highlights": "No ferry on Monday."},
    ]
    path = tmp_path / "articles.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
