"""How trtla ends: Ctrl-C, a closed pipe, a check that failed; and the comparison itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ROOT, needs, refused, trtla
from trtla.llm.llm import Completion
from trtla.results.documents import Divergence
from trtla.results.metrics import distinct_4grams
from trtla.results.run import divergence
from trtla.runtime.stats import RequestStats
from trtla.settings.lookahead import LookaheadConfig


def start(*args: str | Path, stdout: int = subprocess.PIPE, **env: str) -> subprocess.Popen[str]:
    """Start trtla with SIGINT as on a terminal, also when the tests run in background."""
    return subprocess.Popen(
        [sys.executable, "-m", "trtla", *map(str, args)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def interrupted(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted" in err


@pytest.fixture
def endless(engine: Path, tmp_path: Path) -> tuple[str | Path, ...]:
    """A command that no machine is done with before its test interrupts it."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("ab\n" * 1000)
    return ("run", "-m", engine, "--input-file", prompts, "-n", "250", "--no-lookahead")


def test_ctrl_c_while_decoding(endless: tuple[str | Path, ...]) -> None:
    child = start(*endless, "--stream")
    assert child.stdout is not None
    assert child.stdout.readline()
    interrupted(child)


def test_ctrl_c_while_torch_is_imported(endless: tuple[str | Path, ...]) -> None:
    child = start("-v", *endless, TRTLA_COMPILED="0")
    maps = Path(f"/proc/{child.pid}/maps")
    if not maps.exists():
        child.kill()
        pytest.skip("needs /proc to see the import begin")
    while "libtorch" not in maps.read_text():
        assert child.poll() is None
        time.sleep(0.005)
    interrupted(child)


@needs("inspect")
def test_a_closed_pipe_is_silent(engine: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = start("inspect", engine, stdout=writing)
    os.close(writing)
    _, err = child.communicate()
    assert (child.returncode, err) == (1, "")


def completion(ids: tuple[int, ...], margins: tuple[float, ...] = ()) -> Completion:
    triple = LookaheadConfig(2, 2, 2)
    return Completion(0, None, (1,), ids, "text", "length", triple, RequestStats(), margins)


def test_divergence() -> None:
    plain = completion((5, 6, 7), (0.5, 0.25, 0.125))
    assert divergence(completion((5, 6, 7)), plain) is None
    for ids, *expected in (
        ((5, 9, 7), 1, 9, 6, 0.25),
        ((5, 6), 2, None, 7, 0.125),
        ((5, 6, 7, 8), 3, 8, None, None),
    ):
        assert divergence(completion(ids), plain) == difference(*expected)


def difference(position: int, own: int | None, plain: int | None, margin: float | None) -> Any:
    return Divergence(position=position, id=own, plain_id=plain, margin=margin, of="ids")


def test_another_text_or_reason_of_the_same_ids_is_a_divergence() -> None:
    plain = completion((5, 6, 7))
    text, reason = replace(plain, text="texts"), replace(plain, finish_reason="stop_words")
    assert divergence(text, plain) == Divergence(position=3, of="text")
    assert divergence(reason, plain) == Divergence(position=3, of="finish_reason")


def test_a_text_that_differs_is_exit_code_3(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cli.run.transcript", "results.run"):
        found = difference(1, 9, 6, 0.25)
        monkeypatch.setattr(f"trtla.{module}.divergence", lambda ours, plain, found=found: found)
    ran = trtla("run", "--engine-dir", engine, "--input-text", "a", "--check-lossless", "--json")
    refused(ran, 3, "1 of 1 texts differ")
    assert ran.json["results"][0]["lossless"] is False
    expected = {"position": 1, "id": 9, "plain_id": 6, "margin": 0.25, "of": "ids"}
    assert ran.json["results"][0]["divergence"] == expected


def test_distinct_4grams() -> None:
    assert distinct_4grams([(1, 2, 3)]) is None
    assert distinct_4grams([(1, 2, 3, 4)]) == 1.0
    assert distinct_4grams([(1,) * 8]) == pytest.approx(1 / 5)
    assert distinct_4grams([(1,) * 8, (1, 2, 3, 4)]) == pytest.approx(2 / 6)
