"""scripts/verify_trtllm.sh: what it leaves behind when steps fail, and what counts as equal.

CI runs all its steps against the stand-in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from trtla.llm.llm import Completion
from trtla.runtime.stats import RequestStats
from trtla.settings.lookahead import LookaheadConfig

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "verify_trtllm.sh"


def verify(script: Path, *flags: object, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", str(script), *map(str, flags)],
        env={**os.environ, "PYTHON": sys.executable, **variables},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout.splitlines()[-1]


def named(bundle: Path) -> list[str]:
    with tarfile.open(bundle) as opened:
        return opened.getnames()


def with_gpu(folder: Path) -> str:
    """A PATH with a driver's program."""
    (folder / "nvidia-smi").symlink_to("/bin/true")
    return os.pathsep.join([str(folder), os.environ["PATH"]])


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="a GPU is here")
def test_what_the_machine_lacks_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    asked = ("bash", SCRIPT, "--work-dir", tmp_path / "work")
    for path, lack in ((os.environ["PATH"], "no GPU"), (with_gpu(tmp_path), "no tensorrt_llm")):
        here = {**os.environ, "PYTHON": sys.executable, "PATH": path}
        done = subprocess.run(asked, env=here, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "FAIL environment\n")
        assert lack in done.stderr
    assert not (tmp_path / "work").exists()


def test_a_copy_on_a_fresh_machine_installs_what_it_needs(tmp_path: Path) -> None:
    """Without a network that fails, and is told: trtla is not taken from the working directory."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "scripts", copy / "scripts")
    shutil.copytree(ROOT / "trtla", copy / "trtla", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    (tmp_path / "library" / "tensorrt_llm").mkdir(parents=True)
    path = with_gpu(tmp_path)
    here = {"PIP_NO_INDEX": "1", "PATH": path, "PYTHONPATH": str(tmp_path / "library")}
    asked = ("--work-dir", tmp_path / "work")
    code, last = verify(copy / "scripts" / "verify_trtllm.sh", *asked, **here)
    assert code == 1
    assert last.startswith("FAIL environment machine float16 ")
    log = (tmp_path / "work" / "logs" / "environment.log").read_text()
    assert "pip install" in log
    assert ".[serve,torch]" in log
    assert "pytest-timeout" in log
    report = (tmp_path / "work" / "report.md").read_text()
    assert "| float16 | not run |" in report
    assert "No matching distribution" in report, "what pip says is in the report"
    assert "verify-trtllm/report.md" in named(tmp_path / "work" / "verify-trtllm.tar.gz")


def test_a_step_that_fails_is_told_and_the_others_run(tmp_path: Path) -> None:
    asked = ("--stand-in", "--work-dir", tmp_path, "--only", "machine,sampling,fp8")
    code, last = verify(SCRIPT, *asked, TENSORRT_LLM_STANDIN_GPU="7.5")
    assert (code, last) == (1, "FAIL sampling")
    report = (tmp_path / "report.md").read_text()
    assert "Result: FAIL sampling" in report
    assert "compute capability 7.5 is below 8.0" in report, "its stderr is in the report"
    assert "| fp8 | skipped |" in report
    assert '"schema_version"' in report, "the machine is described"
    found = named(tmp_path / "verify-trtllm.tar.gz")
    for name in ("doctor.json", "pip-freeze.txt", "logs/sampling.log", "logs/machine.log"):
        assert f"verify-trtllm/{name}" in found


def test_the_container_runs_the_same_script(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$@"\n')
    docker.chmod(0o755)
    path = with_gpu(tmp_path)
    _, line = verify(SCRIPT, "--docker", "some/image:1", "--only", "machine", PATH=path)
    assert line.startswith("run --rm --gpus all --ipc=host --ulimit memlock=-1 -v ")
    assert line.endswith("some/image:1 bash scripts/verify_trtllm.sh --only machine")


def test_the_help_names_the_container(capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["bash", SCRIPT, "--help"], check=True)
    assert "--docker IMAGE" in capfd.readouterr().out
    done = subprocess.run(["bash", SCRIPT, "--only", "fp8", "--docker", "some/image"])
    assert done.returncode == 2
    assert "--docker IMAGE must be the first flag" in capfd.readouterr().err


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.with_suffix(""))


def module(name: str) -> ModuleType:
    import importlib

    return importlib.import_module(name)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (["pass", "skipped"], ("PASS", 0)),
        (["pass", "rounding"], ("PASS (rounding only)", 3)),
        (["rounding", "fail", "not run"], ("FAIL b c", 1)),
    ],
)
def test_the_verdict_is_one_line(words: list[str], verdict: tuple[str, int]) -> None:
    outcome = module("running").Outcome
    found = [outcome(name, word) for name, word in zip("abc", words, strict=False)]
    assert module("report").verdict(found) == verdict


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("output_ids", "margin", "code"),
    [([5, 6, 7], 1.0, 0), ([5, 9, 7], 0.01, 3), ([5, 9, 7], 0.4, 1), ([5, 6], 0.01, 1)],
)
def test_only_a_parting_at_a_near_tie_is_rounding(
    output_ids: list[int], margin: float, code: int
) -> None:
    triple = LookaheadConfig(1, 1, 0)
    plain = Completion(
        0, None, (1,), (5, 6, 7), "", "length", triple, RequestStats(), (9.0, margin, 9.0)
    )
    found, cells = module("texts").judged((output_ids, None, "length", 1.0), plain, 0.05)
    assert found == code
    assert (f"{margin:.4f}" in cells) is (code != 0 and len(output_ids) == 3)
