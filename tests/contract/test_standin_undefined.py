"""Where C++ has no defined answer, the stand-in raises, and goes on raising."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.standin import Standin
from tests.support.standin_engines import (
    Ask,
    asker,
    build,
    drain,
    open_executor,
    tokens,
)

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("fake_gpu")]
NOW = timedelta(0)


@pytest.fixture
def ask(standin: Standin) -> Ask:
    return asker(standin)


@pytest.fixture
def executor(standin: Standin, tiny_checkpoint: Path, tmp_path: Path) -> Any:
    """On an engine of (4,4,4)."""
    return open_executor(standin, build(standin, tiny_checkpoint, tmp_path / "engine"))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"prompt": [65, 66]}, "prompt of 2 tokens and N is 4"),
        ({"prompt": [65, 300, 66]}, "token id 300"),
        ({"prompt": [65] * 100}, "max_tokens was lowered to 0"),
    ],
)
def test_undefined_behaviour_is_loud_and_final(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, ask: Ask, given: Any, what: str
) -> None:
    undefined = standin.load("_standin").StandinUndefinedBehaviour
    folder = build(standin, tiny_checkpoint, tmp_path, max_input_len=100, max_seq_len=100)
    executor = open_executor(standin, folder)
    executor.enqueue_request(ask(**given))
    for _ in range(2):
        with pytest.raises(undefined, match=what):
            executor.await_responses(timeout=NOW)
    with pytest.raises(undefined):
        executor.enqueue_request(ask())


def test_lookahead_over_pipeline_stages_generates_nothing(
    standin: Standin,
    tiny_checkpoint_tp2_pp2: Path,
    tmp_path: Path,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = build(standin, tiny_checkpoint_tp2_pp2, tmp_path / "engine")
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_MPI_DIR", str(tmp_path))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(standin.load("_standin").StandinUndefinedBehaviour, match="pipeline stage"):
        drain(open_executor(standin, folder), ask())


def test_an_unfinished_chunk_beside_lookahead_moves_wrong_keys(
    executor: Any, standin: Standin, tiny_checkpoint: Path, tmp_path: Path, ask: Ask
) -> None:
    folder = build(standin, tiny_checkpoint, tmp_path / "small", max_num_tokens=96)
    chunked = open_executor(standin, folder, enable_chunked_context=True)
    assert len(tokens(drain(chunked, ask(range(97), 4))[1])) == 4, "alone it is fine"
    with pytest.raises(standin.load("_standin").StandinUndefinedBehaviour, match="chunk"):
        drain(chunked, ask(), ask(), ask(), ask(range(97), 4))


def test_waiting_for_nothing_would_never_end(executor: Any, standin: Standin) -> None:
    assert executor.await_responses(timeout=timedelta(milliseconds=30)) == []
    with pytest.raises(standin.load("_standin").StandinUndefinedBehaviour, match="for ever"):
        executor.await_responses()
