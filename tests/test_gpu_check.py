"""scripts/gpu_check.sh and the probe behind it: what of them a CPU can run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def probe(*sections: str) -> subprocess.CompletedProcess[str]:
    """A dry run of sections."""
    command = [sys.executable, "-W", "ignore", ROOT / "scripts" / "gpu_probe.py", *sections]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PROBE_DRY": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_sections_without_kernels_and_one_that_fails() -> None:
    done = probe("env", "stall", "check:no-such-type", "gemm", "sample", "texts", "tune")
    out = done.stdout
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 1), out + done.stderr
    assert len(re.findall(r"^=====", out, re.MULTILINE)) == 7
    assert len(re.findall(r"a new key length costs \d+\.\d\d ms", out)) == 4
    assert re.search(r"^qkv +1: .* \| .* \[\d+\]; 2: ", out, re.MULTILINE)
    assert out.count("equal the CPU's: True; one row alone equals 64: True") == 3
    assert out.count("3 of 3 equal plain decoding, 3 of 3 the CPU's float32") == 12
    assert "nothing to tune on a CPU" in out


@TRITON
def test_kernels_and_steps() -> None:
    done = probe("check", "mini", "step")
    out = done.stdout
    assert (done.returncode, done.stderr) == (0, ""), out + done.stderr
    found = re.search(r"worst relative error against float64 (\S+) ", out)
    assert found is not None
    assert 0 < float(found[1]) < 2e-5
    assert out.count("argmax equal {'packed': '1.00', 'graph': '1.00', 'fused': '1.00'}") == 2
    assert out.count("-> efficiency at most {'AR': '1.000', '7,7,7': ") == 3


@pytest.mark.parametrize("stage", [[], ["s4"]])
def test_usage(stage: list[str]) -> None:
    command = ["bash", "scripts/gpu_check.sh", *stage]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "scripts/gpu_check.sh prepare" in done.stderr
    assert done.stderr.rstrip().endswith("what each figure decides.")
