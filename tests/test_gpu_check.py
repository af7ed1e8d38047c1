"""scripts/gpu_check.sh and the probe behind it: what of them a CPU can run."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_probe  # noqa: E402
import gpu_probe_figures as figures  # noqa: E402

from trtla.runtime.models.cuda.path import CudaPath  # noqa: E402

TRITON = find_spec("triton") is not None


def check(out: Path, *args: str, dry: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the script with this Python, which leaves its documents in `out`."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    dryness = {"PROBE_DRY": "1" if dry else "0"}
    environment = os.environ | dryness | {"PATH": path, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    command = ["bash", "scripts/gpu_check.sh", *args]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, dict[str, Any]]]:
    """What a dry run of all stages prints, and its documents."""
    out = tmp_path_factory.mktemp("out")
    done = check(out, "s1", "s2", "s3")
    assert done.returncode == (0 if TRITON else 3), done.stdout + done.stderr
    return done.stdout, {
        name: json.loads((out / f"{name}.json").read_text()) for name in gpu_probe.STAGES
    }


def test_no_section_of_a_dry_run_fails_and_nothing_is_wrong(dry_run):
    printed, documents = dry_run
    assert "Traceback" not in printed
    for document in documents.values():
        assert (document["failed"], document["gpu"], document["dry"]) == ({}, None, True)
        assert {row["verdict"] for row in document["figures"]} <= {figures.OK, figures.UNMEASURED}
    ran = set(re.findall(r"^===== (\S+)", printed, re.MULTILINE))
    lacking = {name for name in gpu_probe.KERNELS if not TRITON}
    wanted = {one for works in gpu_probe.STAGES.values() for work in works for one in work.sections}
    assert ran == {
        one for one in wanted - set(gpu_probe.NOT_DRY) if gpu_probe.base(one) not in lacking
    }


def test_what_a_cpu_can_tell_is_judged(dry_run):
    _, documents = dry_run
    judged = {
        row["figure"]
        for document in documents.values()
        for row in document["figures"]
        if row["verdict"] == figures.OK
    }
    kernels = {"attention over pages, float32", "logits of graphs, float32"} if TRITON else set()
    assert judged == kernels | {
        "draws as on the CPU",
        "draws of a row alone",
        "texts in float32 as the CPU's",
        "texts in float32, PyTorch's operations",
        "32 clients, failed requests, 1B",
    }


def test_a_table_shows_value_expectation_and_verdict(dry_run):
    printed, _ = dry_run
    assert re.search(
        r"^copy rate +\S+ GB/s +>= 2800 \(H100\), 4000 \(H200\) +not measured$", printed, re.M
    )
    assert re.search(r"^32 clients, failed requests, 1B +0 +<= 0 +ok$", printed, re.M)


def test_a_section_that_fails_fails_the_stage_and_does_not_stop_the_next(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(gpu_probe, "DRY", True)
    monkeypatch.setattr(gpu_probe, "OUT", tmp_path)
    monkeypatch.setattr(gpu_probe, "SECTIONS", {"a": "json:nothing", "b": "gc:collect"})
    works = [gpu_probe.Work(1, (name,)) for name in ("a", "b")]
    assert gpu_probe.stage("again", works) == 1
    failed = json.loads((tmp_path / "again.json").read_text())["failed"]
    assert failed == {"a": "AttributeError: module 'json' has no attribute 'nothing'"}
    printed = capsys.readouterr().out
    assert re.findall(r"^===== (\S+)", printed, re.MULTILINE) == ["a", "b"]
    assert printed.rstrip().endswith("FAILED a: " + failed["a"])


def test_a_section_is_ended_at_its_limit(monkeypatch):
    monkeypatch.setattr(gpu_probe, "DRY", False)
    found = list(gpu_probe.together(gpu_probe.Work(0, ("tune",))))
    assert found == [("tune", "it took longer than 0 s")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so_and_nothing_runs(tmp_path):
    done = check(tmp_path, "s1", dry=False)
    assert done.returncode == 3
    assert "missing: PyTorch sees no CUDA device" in done.stdout
    assert "=====" not in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "scripts/gpu_check.sh prepare"),
        (["s4"], "scripts/gpu_check.sh prepare"),
        (["again"], "gpu_probe.py again SECTION"),
        (["again", "no-such-section"], "no section no-such-section; there are models, env,"),
    ],
)
def test_usage(args, said, tmp_path):
    done = check(tmp_path, *args)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr


def test_a_missing_package_and_a_small_gpu_are_told(monkeypatch):
    monkeypatch.setattr(gpu_probe, "find_spec", lambda name: None if name == "pydantic" else True)
    found = gpu_probe.missing(["env", "step:8B"], gpu_probe.Gpu("NVIDIA L4", 22.0))
    assert any("package pydantic is missing" in sentence for sentence in found.fatal)
    assert found.sections == {"step:8B": "the GPU has 22 GB of memory, 8B needs 24"}


@pytest.mark.parametrize(
    ("name", "value", "gpu", "verdict"),
    [
        ("copy rate", 3000, "NVIDIA H100 80GB HBM3", figures.OK),
        ("copy rate", 3000, "NVIDIA H200", figures.SLOW),
        ("copy rate", 3000, "NVIDIA L4", "nothing expected of this GPU"),
        ("copy rate", 3000, None, figures.UNMEASURED),
        ("84 tokens over one, 8B", 1.12, "NVIDIA L4", figures.OK),
        ("84 tokens over one, 8B", 1.13, "NVIDIA L4", figures.SLOW),
        ("84 tokens over one, 8B", None, "NVIDIA L4", figures.UNMEASURED),
        ("trtla doctor names the graph path", 0.0, "NVIDIA H100", figures.WRONG),
        ("texts in bfloat16 as plain decoding's", 0.94, "NVIDIA H200", figures.WRONG),
        ("logits of graphs, float32", float("nan"), None, figures.WRONG),
        ("logits of graphs, float32", float("inf"), None, figures.WRONG),
    ],
)
def test_verdicts(name, value, gpu, verdict):
    assert figures.BY_NAME[name].verdict(value, gpu) == verdict


def test_only_the_graph_path_is_named_by_doctor(monkeypatch):
    monkeypatch.setenv("PROBE_MODELS", "/nowhere")
    commands = importlib.import_module("gpu_probe_commands")
    assert commands.names_graphs(str(CudaPath(None)))
    assert not commands.names_graphs(str(CudaPath("logits by graphs differ by 0.5")))
    assert not commands.names_graphs(None)


def test_stages_end_in_time_and_measure_every_figure_once():
    works = [work for stage in gpu_probe.STAGES.values() for work in stage]
    assert all(sum(work.limit_s for work in stage) < 600 for stage in gpu_probe.STAGES.values())
    sections = [name for work in works for name in work.sections if name != "models"]
    assert len(sections) == len(set(sections))
    assert {figure.section for figure in figures.FIGURES} <= set(sections)
    assert len(figures.BY_NAME) == len(figures.FIGURES)


def test_the_page_lists_the_figures_as_they_are_declared():
    page = (ROOT / "docs" / "gpu.md").read_text()
    listed = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [[cells[0], *cells[1:3], cells[-1]] for cells in listed if len(cells) == 6]
    declared = [line.split(" | ") for line in figures.docs_table().splitlines()]
    assert rows == [[cells[0], *cells[1:3], cells[-1]] for cells in declared]


def test_the_page_is_filled_from_documents():
    row = {"figure": "copy rate", "value": 4300.4}
    table = figures.docs_table([{"gpu": "NVIDIA H200", "figures": [row]}])
    assert "| copy rate | GB/s | >= 2800 (H100), 4000 (H200) | - | 4300 |" in table
