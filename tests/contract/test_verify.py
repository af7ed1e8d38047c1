"""scripts/verify_trtllm.py on the stand-in: the report, and what counts as a failure."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.cli.conftest import trtla
from trtla.llm.llm import Completion
from trtla.runtime.stats import RequestStats
from trtla.settings.lookahead import LookaheadConfig

SCRIPT = Path(__file__).parents[2] / "scripts" / "verify_trtllm.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_trtllm", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verify_trtllm"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def in_this_process(command: list[str], **_: object) -> SimpleNamespace:
    """What `python -m trtla ...` does, without a new interpreter for each of six commands."""
    assert command[:3] == [sys.executable, "-m", "trtla"]
    ran = trtla(*command[3:])
    return SimpleNamespace(returncode=ran.code, stdout=ran.out)


@pytest.mark.usefixtures("standin", "fake_gpu")
def test_it_reports_equal_texts(
    script: ModuleType,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--work-dir", tmp_path, "--model-dir", tiny_model, "--lookahead", "4,4,4"]
    flags += ["--max-output-len", "12", "--device", "cpu", "--torch-dtype", "float32"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
    monkeypatch.setattr(script, "subprocess", SimpleNamespace(PIPE=None, run=in_this_process))
    assert script.main() == 0
    assert capsys.readouterr().out == f"equal; wrote {tmp_path / 'report.md'}\n"
    report = (tmp_path / "report.md").read_text()
    assert report.count(" | yes | - | - |") == 12
    assert "`trtla build " in report
    assert '"schema_version"' in report, "the machine is described"


@pytest.mark.parametrize(
    ("output_ids", "margin", "good", "equal"),
    [([5, 6, 7], 1.0, True, True), ([5, 9, 7], 0.01, True, False), ([5, 9, 7], 0.4, False, False)],
)
def test_only_a_parting_at_a_near_tie_is_rounding(
    script: ModuleType, output_ids: list[int], margin: float, good: bool, equal: bool
) -> None:
    triple = LookaheadConfig(1, 1, 0)
    plain = Completion(
        0, None, (1,), (5, 6, 7), None, "length", triple, RequestStats(), (9.0, margin, 9.0)
    )
    report = script.Report()
    ours = {"index": 0, "output_ids": output_ids, "tokens_per_step": 1.0}
    ours |= {"text": None, "finish_reason": "length"}
    assert script._row(report, "lookahead", ours, plain) is good
    assert report.equal is equal
    assert (f"{margin:.4f}" in report.lines[0]) is not equal
