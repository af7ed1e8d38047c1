"""`trtla doctor`: every state of TensorRT-LLM, GPUs and models, and that nothing makes it fail."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.command import ROOT, Ran, trtla
from tests.support.fake_trtllm import (
    EXECUTOR,
    REQUEST,
    install,
    patched,
    plug_in,
    put_program,
    without_tensorrt_llm,
)
from trtla.trtllm import rules as kernels

pytestmark = without_tensorrt_llm


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """See `patched`."""
    with patched() as patch:
        yield patch


def told(ran: Ran) -> Any:
    """The JSON document of a run that could look."""
    assert ran.code == 0, ran.err
    return ran.json


def test_without_tensorrt_llm(patch: pytest.MonkeyPatch) -> None:
    found = told(trtla("doctor", "--json"))
    assert found["schema_version"] == 1
    assert found["tensorrt_llm"]["version"] is None
    assert found["tensorrt_llm"]["has_backend"] is False
    assert found["backend"] == {"auto": "torch", "reason": "TensorRT-LLM is not installed"}
    assert found["model"] is None
    assert found["cpu"]["cores"] >= 1
    assert found["llguidance"] == _installed("llguidance")
    assert found["lookahead_kernels"]["head_sizes"] == [64, 128]
    assert not [name for name in sys.modules if name.startswith("tensorrt_llm")]


OLD_REQUEST = EXECUTOR + "class Request: ..."
NO_LOOKAHEAD = "class Executor: ...\n" + REQUEST
REMOVED = {"builder": False, "executor": "class Request: ...", "program": False}
BANNER = "print('[TensorRT-LLM] TensorRT-LLM version: 1.2.1')"  # which must not spoil the JSON


@pytest.mark.parametrize(
    ("release", "how", "complete", "missing", "warned"),
    [
        ("1.2.1", {}, True, 0, ()),
        ("1.2.1", {"at_import": BANNER}, True, 0, ()),
        ("0.18.1", {}, True, 0, ("0.18.1", ">=0.20")),
        ("1.3.0rc20", {}, True, 0, ("1.3.0rc20", "has the TensorRT backend", "<1.3")),
        ("0.20.0", {}, True, 0, ("0.20.0", "5451", "1.2.1")),
        ("1.2.1", {"program": False}, True, 1, ("trtllm-build",)),
        ("1.2.1", {"builder": False}, False, 1, ("tensorrt_llm.builder",)),
        ("1.2.1", {"executor": NO_LOOKAHEAD}, False, 1, ("LookaheadDecodingConfig",)),
        ("1.2.1", {"executor": OLD_REQUEST}, False, 1, ("lookahead_config",)),
        (
            "1.3.0rc21", REMOVED, False, 5,
            ("1.3.0rc21", "in 1.3.0rc21", "<1.3", "the torch executor serves meanwhile"),
        ),
        ("1.2.1", {"at_import": "raise RuntimeError('libmpi.so.40 is absent\\nand more')"},
         False, 0, ("cannot be imported",)),
        ("1.2.1", {"at_import": "1/0"}, False, 0, ("cannot be imported",)),
    ],
)  # fmt: skip
def test_what_a_release_has_counts_and_not_its_number(
    patch: pytest.MonkeyPatch, tmp_path: Path, release: str, how: dict[str, Any], complete: bool,
    missing: int, warned: tuple[str, ...],
) -> None:  # fmt: skip
    install(patch, tmp_path, release, **how)
    plug_in(patch, (9, 0))
    found = told(trtla("doctor", "--json"))
    library = found["tensorrt_llm"]
    assert (library["version"], library["has_backend"]) == (release, complete)
    assert bool(library["failure"]) == (warned == ("cannot be imported",))
    if not library["failure"]:
        assert len(library["missing"]) == missing
    assert (found["backend"]["auto"] == "tensorrt-llm") == complete
    assert len(found["warnings"]) == bool(warned)
    assert all(part in found["warnings"][0] for part in warned)


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def test_without_llguidance_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def absent(package: str) -> str:
        if package == "llguidance":
            raise importlib.metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    (row,) = (line for line in trtla("doctor").out.splitlines() if "llguidance" in line)
    assert "trtla[structured]" in row


def test_the_program_is_not_needed(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(patch, tmp_path, program=False)
    assert "complete, but lacks the program trtllm-build" in trtla("doctor").out


@pytest.mark.parametrize(
    ("capability", "lookahead", "fp8", "warned"),
    [
        ((7, 5), "no", False, "below 8.0"),
        ((8, 0), "yes", False, None),
        ((8, 9), "yes", True, None),
        ((9, 0), "yes", True, None),
        ((10, 0), "no", True, "Blackwell"),
        ((10, 3), "no", True, "Blackwell"),
        ((12, 0), "unverified", True, "12.0"),
    ],
)
def test_gpus(
    patch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    lookahead: str,
    fp8: bool,
    warned: str | None,
) -> None:
    plug_in(patch, (9, 0), capability)
    found = told(trtla("doctor", "--json"))
    assert found["torch_device"] == "cuda:0"
    assert found["gpus"][0]["tensorrt_llm_lookahead"] == "yes"
    gpu = found["gpus"][1]
    assert gpu["compute_capability"] == ".".join(map(str, capability))
    assert (gpu["tensorrt_llm_lookahead"], gpu["fp8"]) == (lookahead, fp8)
    assert (gpu["memory_bytes"], gpu["free_bytes"]) == (80 * 10**9, 56 * 10**9)
    assert len(found["warnings"]) == (warned is not None)
    assert (warned or "") in "".join(found["warnings"])


def test_gpus_for_people(patch: pytest.MonkeyPatch) -> None:
    plug_in(patch, (10, 0))
    ran = trtla("doctor")
    assert "compute capability 10.0, 74.5 GiB (52.2 free)" in ran.out
    assert "| GPU 0: FP8 on TensorRT-LLM " in ran.out
    assert "\nwarning: lookahead on TensorRT-LLM cannot run on GPU 0" in ran.out


def test_gpus_that_pytorch_does_not_see(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plug_in(patch)
    listing = "NVIDIA L4, 8.9, 23034, 22500, 570.86.10\nNVIDIA GB10, 12.1, [N/A], [N/A], 570.86.10"
    put_program(patch, tmp_path, "nvidia-smi", f"#!/bin/sh\ncat <<END\n{listing}\nEND\n")
    found = told(trtla("doctor", "--json"))
    assert found["driver"]["version"] == "570.86.10"
    assert found["gpus_usable"] is False
    assert [gpu["compute_capability"] for gpu in found["gpus"]] == ["8.9", "12.1"]
    assert [gpu["memory_bytes"] for gpu in found["gpus"]] == [23034 * 2**20, None]
    assert "nvidia-smi lists 2 GPUs" in found["warnings"][0]
    assert "memory unknown" in trtla("doctor").out


@pytest.mark.parametrize(
    "program", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho nothing of use\n", "#!/absent\n"]
)
def test_a_broken_nvidia_smi(patch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    put_program(patch, tmp_path, "nvidia-smi", program)
    assert told(trtla("doctor", "--json"))["driver"]["version"] is None


def test_what_pytorch_says_of_the_driver_is_passed_on(patch: pytest.MonkeyPatch) -> None:
    import warnings

    import torch

    def old_driver() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old", stacklevel=2)
        return False

    patch.setattr(torch.cuda, "is_available", old_driver)
    assert "driver on your system is too old" in trtla("doctor").out


def test_gpus_that_fail_when_asked(patch: pytest.MonkeyPatch) -> None:
    import torch

    def fail(index: int = 0) -> tuple[int, int]:
        raise RuntimeError("CUDA error: device is lost")

    plug_in(patch, (9, 0))
    patch.setattr(torch.cuda, "mem_get_info", fail)
    found = told(trtla("doctor", "--json"))
    assert found["gpus"] == []
    assert "device is lost" in found["warnings"][0]


def test_without_pytorch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from trtla.cli import main\n"
        "main(['doctor', '--json'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["torch"]["version"] is None
    assert found["warnings"] == []
    assert found["backend"]["auto"] == "torch"


@given(st.integers(1, 600))
def test_head_sizes(size: int) -> None:
    allowed = kernels.head_size(size).allowed
    assert (allowed is True) == (size in (64, 128))
    assert (allowed is False) == (size % 16 != 0 or size > 256)


@given(st.integers(1, 64), st.integers(1, 64))
def test_query_groups(group: int, kv_heads: int) -> None:
    verdict = kernels.query_group(group * kv_heads, kv_heads)
    assert verdict.allowed == (group <= 32)


@given(st.tuples(st.integers(5, 13), st.integers(0, 9)))
def test_fp8_needs_ada(capability: tuple[int, int]) -> None:
    assert kernels.fp8_on(capability) == (capability[0] >= 9 or capability == (8, 9))


def test_what_is_not_known_is_not_allowed_in_silence() -> None:
    assert kernels.lookahead_on(None).word == "unverified"
    assert kernels.fp8_on(None) is None
