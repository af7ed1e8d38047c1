"""The README's commands and its Python, run as they stand on the shipped model."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
COMMANDS = [line for _, text in BLOCKS for line in text.splitlines() if line.startswith("trtla ")]
PYTHON = [text for language, text in BLOCKS if language == "python"]
FASTER = {"TRTLA_SUMMARIZE_MAX_ITE": "1", "TRTLA_SUMMARIZE_OUTPUT_LEN": "8"}


def run(arguments: list[str], folder: Path) -> str:
    env = {**os.environ, **FASTER, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tiny_llama, tmp_path_factory):
    """Where the README's names mean the shipped model and the shipped articles."""
    here = tmp_path_factory.mktemp("readme")
    (here / "Llama-3.1-8B").symlink_to(tiny_llama)
    (here / "articles.jsonl").symlink_to(tiny_llama.parent / "articles.jsonl")
    return here


def test_the_readme_has_commands_and_python():
    assert len(COMMANDS) >= 5
    assert len(PYTHON) >= 1


def test_commands_in_their_order(folder):
    for command in COMMANDS:
        assert run(["-m", "trtla", *shlex.split(command)[1:]], folder), command


def test_python(folder):
    for text in PYTHON:
        assert len(run(["-c", text], folder)) > 100
