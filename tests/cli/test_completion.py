"""What shells offer: the protocol of bash, zsh and fish, and bash itself with the script."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT, refused, trtla
from tests.support.completion import offered

BASH = shutil.which("bash")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_offered_commands_flags_and_choices(shell: str) -> None:
    assert offered("trtla summ", shell) == ["plain,summarize"]
    assert offered("trtla run --check", shell) == ["plain,--check-lossless"]
    assert offered("trtla run --dtype fl", shell) == ["plain,float16", "plain,float32"]
    assert offered("trtla run --engine-dir mod", shell) == ["file,mod"]
    assert f"_TRTLA_COMPLETE={shell}_complete" in trtla("completion", shell).out


def test_a_shell_must_be_named_and_known() -> None:
    refused(trtla("completion"), 2, "Choose from: bash, zsh, fish")
    refused(trtla("completion", "tcsh"), 2, "tcsh", "bash")


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    command = tmp_path / "trtla"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trtla "$@"\n')
    command.chmod(0o755)
    words = ["trtla", "run", "--input-text", "'two words'", "--chec"]
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
    assert done.stdout.splitlines() == ["--check-lossless"], done.stderr
