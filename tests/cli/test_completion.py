"""What shells offer: the protocol of bash, zsh and fish, and bash itself with the script."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT, imports, refused, trtla
from tests.support.completion import offered
from trtla.cli.shared.values import _NAMES, _names

BASH = shutil.which("bash")


def test_a_shell_must_be_named() -> None:
    refused(trtla("completion"), 2, "Choose from: bash, zsh, fish")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_offered_commands_flags_and_values(shell: str) -> None:
    assert offered("trtla summ", shell) == ["plain,summarize"]
    assert offered("trtla run --check", shell) == ["plain,--check-lossless"]
    assert offered("trtla run --dtype fl", shell) == ["plain,float16", "plain,float32"]
    assert "plain,7,7,7" in offered("trtla run --lookahead ", shell)
    assert f"_TRTLA_COMPLETE={shell}_complete" in trtla("completion", shell).out


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("trtla run --drafter lookahead,n", ["lookahead,ngram"]),
        ("trtla run --processor nuc", ["nucleus:0.8:0.9"]),
        ("trtla run --device c", ["cpu", "cuda"]),
        ("trtla run --ngram-kind o", ["onelevel"]),
        ("trtla run --engine_dir e --ngram_kind o", ["onelevel"]),
        ("trtla summarize --dataset cnn", ["cnn_dailymail"]),
        ("trtla completion z", ["zsh"]),
    ],
)
def test_values_are_offered_by_what_a_flag_knows(line: str, values: list[str]) -> None:
    assert offered(line) == [f"plain,{value}" for value in values]


@pytest.mark.parametrize(
    ("line", "offer"),
    [
        ("trtla run --engine-dir mod", "dir,mod"),
        ("trtla run --tokenizer-dir mod", "dir,mod"),
        ("trtla run --input-file pro", "file,pro"),
        ("trtla summarize --dataset ./own", "file,./own"),
        ("trtla build --config con", "file,con"),
        ("trtla run ben", "file,ben"),
    ],
)
def test_the_shell_itself_completes_folders_and_files(line: str, offer: str) -> None:
    assert offered(line) == [offer]


def test_the_engines_own_triple_comes_first(engine: Path) -> None:
    found = offered(f"trtla run --engine-dir {engine} --lookahead ")
    assert found[:2] == ["plain,4,3,4", "plain,auto"]
    assert "plain,auto" not in offered("trtla build --lookahead ")


@pytest.mark.parametrize("flag", _NAMES)
def test_names_of_a_flag_are_where_the_table_says(flag: str) -> None:
    assert all(isinstance(name, str) for name in _names(_NAMES[flag]))


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.deep(first=3)
@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (["trtla", "bui"], ["build"]),
        (["trtla", "run", "--dtype", "b"], ["bfloat16"]),
        (["trtla", "run", "--lookahead", "a"], ["auto"]),
        (["trtla", "run", "--lookahead", "7"], ["7,7,7"]),
        (["trtla", "run", "--dtype", "=", "b"], ["bfloat16"]),
        (["trtla", "run", "--input-text", "'two words'", "--chec"], ["--check-lossless"]),
    ],
)
def test_bash_completes_with_the_script(words: list[str], reply: list[str], tmp_path: Path) -> None:
    command = tmp_path / "trtla"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trtla "$@"\n')
    command.chmod(0o755)
    given = " ".join(map(shlex.quote, words))  # quotes are part of what bash hands over
    script = (
        f"{trtla('completion', 'bash').out}\n"
        f"COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}\n"
        "_trtla_completion trtla\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert BASH is not None
    done = subprocess.run(
        [BASH, "--norc", "-c", script], capture_output=True, text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.splitlines() == reply, done.stderr


def test_fish_keeps_the_commas_of_values() -> None:
    script = trtla("completion", "fish").out
    assert 'string split --max 1 ","' in script
    assert 'string split ","' not in script
    refused(trtla("completion", "tcsh"), 2, "tcsh", "bash")


def test_completing_imports_nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"COMP_CWORD": "3", "COMP_WORDS": "trtla run --drafter n"}
    for key, value in {"_TRTLA_COMPLETE": "bash_complete", **line}.items():
        monkeypatch.setenv(key, value)
    assert "plain,ngram" in imports([], heavy=("torch", "transformers", "numpy", "rich")).out
