"""scripts/gpu_check.sh and the probe behind it: what of them a CPU can run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_probe import figures, stages  # noqa: E402

TRITON = find_spec("triton") is not None
SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def check(
    out: Path, *args: str, dry: bool = True, cwd: Path = ROOT, **variables: str
) -> tuple[int, str]:
    """The exit code of a script by this Python, which leaves its documents in `out`, and output."""
    environment = {
        **os.environ, "PROBE_DRY": "1" if dry else "0", "PYTHON": sys.executable,
        "OUT": str(out), "PROBE_MODELS": str(out / "models"), "OMP_NUM_THREADS": "1", **variables,
    }  # fmt: skip
    command = ["bash", str(cwd / "scripts" / "gpu_check.sh"), *args]
    with tempfile.TemporaryFile("w+") as file:  # as most people do who keep what is printed
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=800
        )
        file.seek(0)
        return done.returncode, file.read()


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, dict[str, Any]]]:
    """What a dry run of all stages prints, and its documents."""
    out = tmp_path_factory.mktemp("out")
    code, printed = check(out, "s1", "s2", "s3")
    assert code == (0 if TRITON else 3), printed
    return printed, {name: json.loads((out / f"{name}.json").read_text()) for name in stages.STAGES}


DRY_RUN = pytest.mark.timeout(900)  # whichever test comes first waits for it


@DRY_RUN
@pytest.mark.deep
def test_no_section_of_a_dry_run_fails_and_nothing_is_wrong(dry_run):
    printed, documents = dry_run
    assert "Traceback" not in printed
    for document in documents.values():
        assert (document["failed"], document["gpu"], document["dry"]) == ({}, None, True)
        assert {row["verdict"] for row in document["figures"]} <= {figures.OK, figures.UNMEASURED}
    ran = set(re.findall(r"^===== (\S+)", printed, re.MULTILINE))
    lacking = {name for name in stages.KERNELS if not TRITON}
    wanted = {one for works in stages.STAGES.values() for work in works for one in work.sections}
    assert ran == {one for one in wanted - set(stages.NOT_DRY) if stages.base(one) not in lacking}


@DRY_RUN
@pytest.mark.deep
def test_what_a_cpu_can_tell_is_judged(dry_run):
    _, documents = dry_run
    judged = {
        row["figure"]
        for document in documents.values()
        for row in document["figures"]
        if row["verdict"] == figures.OK
    }
    kernels = {
        "attention over pages, float32",
        "logits of graphs, float32",
        "draws as on the CPU",
        "draws of a row alone",
        "rows of a fixed order, alone and among others",
    }
    assert judged == (kernels if TRITON else set()) | {
        "texts in float32 as the CPU's",
        "texts in float32, PyTorch's operations",
        "32 clients, failed requests, 1B",
    }


@DRY_RUN
@pytest.mark.deep
def test_a_table_shows_value_expectation_and_verdict(dry_run):
    printed, _ = dry_run
    assert f"by {sys.executable}, Python" in printed
    assert re.search(
        r"^copy rate +\S+ GB/s +>= 2800 \(H100\), 4000 \(H200\) +not measured$", printed, re.M
    )
    assert re.search(r"^32 clients, failed requests, 1B +0 +<= 0 +ok$", printed, re.M)


def test_a_section_that_fails_fails_the_stage_and_does_not_stop_the_next(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(stages, "DRY", True)
    monkeypatch.setattr(stages, "OUT", tmp_path)
    monkeypatch.setattr(stages, "SECTIONS", {"a": "json:nothing", "b": "gc:collect"})
    works = [stages.Work(1, (name,)) for name in ("a", "b")]
    assert stages.stage("again", works, stages.Gpu()) == 1
    failed = json.loads((tmp_path / "again.json").read_text())["failed"]
    assert failed == {"a": "AttributeError: module 'json' has no attribute 'nothing'"}
    printed = capsys.readouterr().out
    assert re.findall(r"^===== (\S+)", printed, re.MULTILINE) == ["a", "b"]
    assert printed.rstrip().endswith("FAILED a: " + failed["a"])


def test_a_section_is_ended_at_its_limit(monkeypatch):
    monkeypatch.setattr(stages, "DRY", False)
    found = list(stages.together(stages.Work(0, ("tune",))))
    assert found == [("tune", "it took longer than 0 s")]


@pytest.mark.deep
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so_and_nothing_runs(tmp_path):
    code, printed = check(tmp_path, "s1", dry=False)
    assert code == 3
    assert re.fullmatch(r"by .*\nmissing: PyTorch sees no CUDA device: .*\n", printed), printed
    assert not (tmp_path / "s1.txt").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "scripts/gpu_check.sh prepare"),
        (["s4"], "scripts/gpu_check.sh prepare"),
        (["again"], "Sections: models, env, check:bfloat16,"),
        (["s1", "nonsense"], "there is no stage nonsense; there are s1, s2, s3"),
        (["again", "env", "step"], "there is no section step; there are models, env,"),
        (["again", "step:9B"], "there is no section step:9B; "),
        (["again", "env:foo"], "there is no section env:foo; "),
    ],
)
def test_usage(args, said, tmp_path):
    kept = [tmp_path / "s1.txt", tmp_path / "again.txt"]
    for path in kept:
        path.write_text("of an earlier run")
    code, printed = check(tmp_path, *args, PYTHON="python3")
    assert code == 2
    assert said in printed
    assert {path.read_text() for path in kept} == {"of an earlier run"}


def test_a_module_that_lacks_another_is_told_with_the_next_step(tmp_path, monkeypatch):
    (tmp_path / "half_here.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(stages, "DRY", True)
    monkeypatch.setattr(stages, "OUT", tmp_path)
    monkeypatch.setattr(stages, "ALWAYS", ("half_here", "json"))
    monkeypatch.setattr(stages, "FOR", {"sample": ("half_here",)})
    monkeypatch.setattr(stages, "NOT_BROUGHT", ("half_here",))
    told = "half_here cannot be imported (No module named 'not_there_at_all'): "
    assert stages.missing(stages.Gpu()) == [told + "`pip install half_here`"]
    assert stages.lacking(["env", "sample"], stages.Gpu()) == {
        "sample": told + "`pip install half_here`"
    }


def test_prepare_brings_all_that_its_packages_need():
    """As the installed packages declare it, but for what is to be there already."""
    listed = re.search(r'^packages="([^"]+)"', SCRIPT.read_text(), re.M)
    assert listed is not None
    packages, pins = listed[1].split(), (ROOT / "constraints.txt").read_text()
    assert [name for name in packages if f"\n{name}==" not in pins] == []
    wanted = {
        canonicalize_name(one.name)
        for name in packages
        if name not in ("exceptiongroup", "tomli")  # of Python 3.10 alone
        for one in map(Requirement, requires(name) or [])
        if one.marker is None or one.marker.evaluate({"extra": ""})
    }
    assert wanted <= {*packages, "numpy"}


def test_wheels_for_another_python_are_told(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".whl").mkdir()
    (tmp_path / ".whl" / "pydantic_core-2.50.4-cp39-cp39-manylinux_2_17_x86_64.whl").touch()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    code, printed = check(tmp_path, "s1", cwd=tmp_path)
    here = "{}.{}".format(*sys.version_info)
    assert code == 3
    told = f"missing: the wheels in .whl/ are for Python 3.9 and {sys.executable} is {here}"
    assert told in printed


def test_a_failed_download_leaves_the_wheels_that_are_there(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".whl").mkdir()
    (tmp_path / ".whl" / "kept.whl").touch()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    code, printed = check(tmp_path, "prepare", cwd=tmp_path, PIP_NO_INDEX="1")
    assert code == 3
    assert "cannot be downloaded; .whl/ is as before" in printed
    assert (tmp_path / ".whl" / "kept.whl").exists()


def test_a_python_that_is_not_there_is_told(tmp_path):
    code, printed = check(tmp_path, "s1", PYTHON="no-such-python")
    assert (code, printed) == (
        3, "missing: PYTHON is no-such-python, which is no program\n",
    )  # fmt: skip


def test_folders_that_cannot_be_written_are_told(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(stages, "OUT", tmp_path / "file")
    monkeypatch.setattr(stages, "MODELS", tmp_path / "file" / "models")
    told = [one for one in stages.missing(stages.Gpu("GPU", 80.0)) if "written" in one]
    assert [one.partition(",")[0] for one in told] == [
        f"OUT is {tmp_path / 'file'}",
        f"PROBE_MODELS is {tmp_path / 'file' / 'models'}",
    ]


def test_a_small_gpu_and_a_missing_tool_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "MODELS", tmp_path)
    monkeypatch.setattr(stages, "FOR", {})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    small = stages.Gpu("NVIDIA L4", 22.0)
    found = stages.lacking(["env", "step:8B", "sanitizer"], small)
    assert found == {
        "step:8B": "the GPU has 22 GB of memory, 8B needs 24",
        "sanitizer": "compute-sanitizer is missing: it comes with the CUDA toolkit",
    }
    rows = figures.judge(tmp_path / "no.records", ["sanitizer"], small.name, found)
    assert figures.table(rows).endswith("not measured: compute-sanitizer is missing")


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


def test_stages_end_in_time_and_measure_every_figure_once():
    works = [work for stage in stages.STAGES.values() for work in stage]
    assert all(sum(work.limit_s for work in stage) < 600 for stage in stages.STAGES.values())
    sections = [name for work in works for name in work.sections if name != "models"]
    assert len(sections) == len(set(sections))
    assert {figure.section for figure in figures.FIGURES} <= set(sections)
    assert len(figures.BY_NAME) == len(figures.FIGURES)


def test_a_section_that_takes_what_is_expected_keeps_its_limit():
    timed = [figure for figure in figures.FIGURES if figure.unit == "s"]
    assert len(timed) == 4
    for figure in timed:
        assert isinstance(figure.most, (int, float))
        assert figure.most + 20 <= stages.LIMITS[figure.section]


def test_the_page_has_expectations_as_they_are_declared():
    page = (ROOT / "docs" / "gpu.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.split("## Results")[1].splitlines()]
    rows = [cells for cells in rows if len(cells) == 4][2:]
    assert len(rows) > 8
    for name, expected, *_ in rows:
        figure = figures.BY_NAME[name]
        assert expected == f"{figure.expectation} {figure.unit}"
    assert f"all {len(figures.FIGURES)} figures" in page


def test_the_page_is_filled_from_documents_that_are_not_dry():
    row, filled = {"figure": "copy rate", "value": 4300.4}, []
    for dry in (False, True):
        document = {"gpu": "NVIDIA H200", "dry": dry, "figures": [row]}
        filled.append(
            "| copy rate | GB/s | >= 2800 (H100), 4000 (H200) | - | 4300 |"
            in figures.docs_table([document])
        )
    assert filled == [True, False]


@pytest.mark.parametrize("content", [None, "no JSON", "[]", "{}"])
def test_a_document_that_cannot_be_read_is_told(content, tmp_path, capsys):
    path = tmp_path / "s1.json"
    if content is not None:
        path.write_text(content)
    assert figures.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"{path} is no document of a stage (")
