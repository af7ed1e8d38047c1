"""`trtla doctor`: this machine in every state of TensorRT-LLM and GPUs, of which none fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.extras.inspect.support import (
    EXECUTOR,
    REQUEST,
    install,
    plug_in,
    put_program,
    without_tensorrt_llm,
)
from tests.support.command import ROOT, trtla
from trtla.console import counted

pytestmark = without_tensorrt_llm


def described() -> Any:
    """The description of this machine."""
    ran = trtla("doctor", "--json")
    assert ran.code == 0, ran.err
    return ran.json


def test_without_tensorrt_llm(patch: pytest.MonkeyPatch) -> None:
    found = described()
    assert found["schema_version"] == 1
    assert found["tensorrt_llm"]["version"] is None
    assert found["tensorrt_llm"]["has_backend"] is False
    assert "docs/install.md" in found["tensorrt_llm"]["problem"]
    assert found["backend"] == {"auto": "torch", "reason": "TensorRT-LLM is not installed"}
    assert (found["model"], found["notes"]) == (None, [])
    cores = counted(found["cpu"]["cores"], "core")
    assert f", {cores} " in next(row for row in trtla("doctor").out.splitlines() if "CPU" in row)
    assert not [name for name in sys.modules if name.startswith("tensorrt_llm")]


OLD_REQUEST = EXECUTOR + "class Request: ..."
NO_LOOKAHEAD = "class Executor: ...\n" + REQUEST
REMOVED = {"builder": False, "executor": "class Request: ..."}
BANNER = "print('[TensorRT-LLM] TensorRT-LLM version: 1.2.1')"  # which must not spoil the JSON
BROKEN = "raise RuntimeError('libmpi.so.40 is absent\\nand more')"


@pytest.mark.parametrize(
    ("release", "how", "problem"),
    [
        ("1.2.1", {"at_import": BANNER}, None),
        ("1.3.0rc20", {}, None),
        ("1.2.1", {"builder": False}, "tensorrt_llm.builder"),
        ("1.2.1", {"executor": NO_LOOKAHEAD}, "LookaheadDecodingConfig"),
        ("1.2.1", {"executor": OLD_REQUEST}, "lookahead_config"),
        ("1.3.0rc21", REMOVED, "the torch executor serves meanwhile"),
        ("1.2.1", {"at_import": BROKEN}, "cannot be imported: RuntimeError: libmpi.so.40"),
    ],
)
def test_the_parts_of_a_release_count_and_not_its_number(
    patch: pytest.MonkeyPatch, tmp_path: Path, release: str, how: Any, problem: str | None
) -> None:
    install(patch, tmp_path, release, **how)
    plug_in(patch, (9, 0))
    found = described()
    library = found["tensorrt_llm"]
    assert (library["version"], library["has_backend"]) == (release, problem is None)
    assert (problem or "") in (library["problem"] or "")
    assert found["backend"]["auto"] == ("torch" if problem else "tensorrt-llm")


def test_a_release_whose_lookahead_may_fail_has_a_note(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(patch, tmp_path, "0.20.0")
    assert "5451" in described()["notes"][0]


def test_gpus(patch: pytest.MonkeyPatch) -> None:
    plug_in(patch, (9, 0), (12, 0))
    found = described()
    assert (found["device"], found["gpus_usable"]) == ("cuda:0", True)
    assert [gpu["capability"] for gpu in found["gpus"]] == ["9.0", "12.0"]
    assert found["gpus"][1]["free_bytes"] == 56 * 10**9
    shown = trtla("doctor").out
    assert "| gpus.1 " in shown
    assert "capability 12.0, memory_bytes 80.00 GB, free_bytes 56.00 GB" in shown


def test_a_gpu_without_lookahead_kernels(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(patch, tmp_path)
    plug_in(patch, (10, 0))
    backend = described()["backend"]
    assert backend["auto"] == "torch"
    assert "Blackwell" in backend["reason"]


def test_gpus_that_pytorch_does_not_see(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plug_in(patch)
    listing = "NVIDIA L4, 8.9, 23034, 22500, 570.86.10\nNVIDIA GB10, 12.1, [N/A], [N/A], 570.86.10"
    put_program(patch, tmp_path, "nvidia-smi", f"#!/bin/sh\ncat <<END\n{listing}\nEND\n")
    found = described()
    assert (found["driver"]["version"], found["gpus_usable"]) == ("570.86.10", False)
    assert [gpu["capability"] for gpu in found["gpus"]] == ["8.9", "12.1"]
    assert [gpu["memory_bytes"] for gpu in found["gpus"]] == [23034 * 2**20, None]
    assert "nvidia-smi lists 2 GPUs" in found["notes"][0]
    assert f"note: {found['notes'][0]}" in trtla("doctor").out


@pytest.mark.parametrize("program", ["#!/bin/sh\necho nothing of use\n", "#!/absent\n"])
def test_a_broken_nvidia_smi(patch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    put_program(patch, tmp_path, "nvidia-smi", program)
    assert described()["driver"]["version"] is None


def test_the_error_of_a_gpu_is_a_note(patch: pytest.MonkeyPatch) -> None:
    import torch

    def fail(index: int = 0) -> tuple[int, int]:
        raise RuntimeError("CUDA error: device is lost")

    plug_in(patch, (9, 0))
    patch.setattr(torch.cuda, "mem_get_info", fail)
    found = described()
    assert found["gpus"] == []
    assert "device is lost" in found["notes"][0]


def test_without_pytorch() -> None:
    code = "import sys; sys.modules['torch'] = None; from trtla.cli import main; main()"
    command = [sys.executable, "-c", code, "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["torch"]["version"], found["notes"]) == (None, [])
    assert found["backend"]["auto"] == "torch"
