"""The four commands of TensorRT-LLM's README of lookahead decoding, word for word.

Only the programs' names and the model's path are replaced. Articles come by environment names,
since tests have no network.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.command import ROOT, Ran, trtla
from trtla.files import ASSETS
from trtla.formats.model_folder import ModelFolder

README = ROOT / "tests" / "support" / "lookahead_readme.sh"
MODEL = ASSETS / "tiny-llama"
PROGRAMS = {
    "python3 examples/models/core/llama/convert_checkpoint.py": "trtla convert",
    "trtllm-build": "trtla build",
    "python examples/run.py": "trtla run",
    "python examples/summarize.py": "trtla summarize",
}
PROMPTS = ("Once upon", "To be, or not", "Be not afraid of greatness")
FEWER = {
    "TRTLA_SUMMARIZE_DATASET": str(ASSETS / "articles.jsonl"),
    "TRTLA_SUMMARIZE_MAX_ITE": "1",
    "TRTLA_SUMMARIZE_MAX_OUTPUT_LEN": "8",
}


def command_lines() -> list[list[str]]:
    """The command lines after `trtla`, split as a shell splits them."""
    text = README.read_text().replace("\\\n", " ").replace("/path/to/vicuna-7b-v1.3", str(MODEL))
    lines = text.splitlines()
    for name, value in (line.split("=") for line in lines[:3]):
        text = text.replace(f"${name}", value)
    for theirs, ours in PROGRAMS.items():
        assert text.count(theirs) == 1
        text = text.replace(theirs, ours)
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("trtla ")]


def run_all() -> list[Ran]:
    """The commands, each a success, one after the other in the current folder."""
    ran = []
    for line in command_lines():
        ran.append(trtla(*line, env=FEWER))
        assert ran[-1].code == 0, ran[-1].err
    return ran


def check(ran: list[Ran], backend: str) -> None:
    converted, built, answered, summarized = ran
    assert "next: trtla build tmp/engine/ckpt" in converted.err
    assert f"backend {backend}" in built.out
    assert all(
        f'Input [Text {index}]: "{text}"' in answered.out for index, text in enumerate(PROMPTS)
    )
    assert "hugging_face (total latency" in summarized.out
    assert ModelFolder(Path("tmp/engine")).kind == "engine"
    assert ModelFolder(Path("tmp/engine/ckpt")).kind == "checkpoint"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)


def test_it_runs_on_torch_engines() -> None:
    check(run_all(), "torch")


@pytest.mark.deep
@pytest.mark.usefixtures("standin", "fake_gpu")
def test_it_runs_on_tensorrt_llm() -> None:
    check(run_all(), "tensorrt-llm")
