"""`trtla chat` on an engine of TensorRT-LLM, run by the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import trtla
from tests.support.standin import Standin
from tests.support.standin_engines import build

pytestmark = pytest.mark.usefixtures("fake_gpu")


def test_a_chat_goes_on_with_what_the_library_has(
    standin: Standin, tiny_checkpoint: Path, tiny_model: Path, tmp_path: Path
) -> None:
    engine = build(standin, tiny_checkpoint, tmp_path / "engine")
    lines = (
        "/length 8\nab\ncd\n/debug on\nef\n/processor topk 1 5\n/lookahead auto\n/drafter ngram\n"
        "/lookahead 2,2,2\ngh\n/stats\n"
    )
    ran = trtla(
        "chat", "--engine-dir", engine, "--tokenizer-dir", tiny_model, "--lookahead", "4,4,4",
        stdin=lines,
    )  # fmt: skip
    assert ran.code == 2, ran.err  # of the refused lines
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 3
    for error, part in zip(errors, ("greedy only", "auto", "makes its drafts itself"), strict=True):
        assert part in error
    assert "4 answers, 32 tokens" in ran.out
