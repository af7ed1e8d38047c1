"""SGLang's own plugin loader and n-gram corpus, compiled for this CPU, with trtla's in their place.

TRTLA_SGLANG_PYTHON names a Python with SGLang 0.5.23 and PyTorch. Its worker and server are not
run: they want SGLang's CUDA kernels.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = (ROOT / "pyproject.toml").read_text()
PYTHON = os.environ.get("TRTLA_SGLANG_PYTHON")
CLASSES = Path(__file__).with_name("sglang_classes.py")

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="needs SGLang 0.5.23: TRTLA_SGLANG_PYTHON"),
    pytest.mark.timeout(600),
]


def run(folder: Path, plugins: str) -> Any:
    """Run the script where trtla is installed as far as its entry points go."""
    installed = folder / "trtla-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: trtla\nVersion: 0.1.0\n")
    section = re.search(
        r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"$', PROJECT, re.MULTILINE
    )
    assert section
    group, name, value = section.groups()
    (installed / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    surroundings = {"PYTHONPATH": f"{folder}:{ROOT}", "SGLANG_PLUGINS": plugins}
    done = subprocess.run(
        [str(PYTHON), str(CLASSES)],
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_loader_puts_trees_in_place_of_the_corpus(tmp_path: Path) -> None:
    found = run(tmp_path, "trtla")
    assert found["classes"] == ["TreeCorpus", "NgramCorpus"]
    assert found["module_that_had_imported_it"] == "TreeCorpus"
    assert found["same_signatures"]
    assert found["same_arrays"] == 60
    assert found["ours"] < found["own"] < found["plain"]
    assert found["kept_rows"] == 0
    assert found["after_a_fault"] < found["plain_after_it"] / 2
    assert found["errors"] == 1


def test_a_plugin_that_is_not_named_changes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "")["classes"] == ["NgramCorpus"]
