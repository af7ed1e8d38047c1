"""--help: complete, pinned in docs/cli.md, and light: no torch, no transformers, no rich."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from tests.cli.conftest import ROOT, process, refused, trtla
from trtla.cli.app import cli

COMMANDS = ("convert", "build", "run", "summarize", "bench", "inspect", "doctor", "completion")
DOCS = ROOT / "docs" / "cli.md"
_HEAVY = ("torch", "transformers", "numpy", "datasets", "rich", "safetensors")


def render() -> str:
    """docs/cli.md: the help of every command, 100 columns wide."""
    parts = [
        "# The command line\n",
        "The output of `trtla --help` and of each command's `--help`; made by\n"
        "`TRTLA_UPDATE_DOCS=1 scripts/test.sh tests/cli/test_help.py`.\n",
    ]
    root = click.Context(cli, info_name="trtla", terminal_width=100, **cli.context_settings)
    parts.append(f"## trtla\n\n```\n{cli.get_help(root)}\n```\n")
    for name in COMMANDS:
        command = cli.commands[name]
        ctx = click.Context(command, parent=root, info_name=name, terminal_width=100)
        parts.append(f"## trtla {name}\n\n```\n{command.get_help(ctx)}\n```\n")
    return "\n".join(parts)


def test_docs_are_the_help() -> None:
    if os.environ.get("TRTLA_UPDATE_DOCS"):
        DOCS.write_text(render(), encoding="utf-8")
    assert DOCS.read_text(encoding="utf-8") == render(), "set TRTLA_UPDATE_DOCS=1 to regenerate"


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["run", "--help"], ["build", "-h"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from trtla.cli import main\n"
        "try:\n"
        f"    main({args!r})\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code\n"
        f"heavy = [m for m in {_HEAVY!r} if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["run", "--engine-dir", "e", "--input-text", "a", "--request-lookahead", "1,2"],
        ["run", "--engine-dir", "e", "--input-text", "a", "--temperature", "-1"],
        ["run", "--engine-dir", "absent", "--input-text", "a"],
        ["summarize", "--engine-dir", "absent", "--dataset", "absent.jsonl"],
        ["bench", "--engine-dir", "absent"],
        ["build", "--checkpoint-dir", "c", "--output-dir", "o", "--lookahead", "0,7,7"],
    ],
)
def test_refusals_without_a_model_import_no_torch(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from trtla.cli import main\n"
        "try:\n"
        f"    main({args!r})\n"
        "except SystemExit as end:\n"
        "    assert end.code == 2, end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples(name: str) -> None:
    ran = trtla(name, "--help")
    assert ran.code == 0
    assert "Examples:" in ran.out
    assert f"trtla {name}" in ran.out


def test_help_shows_defaults_and_environment() -> None:
    text = " ".join(trtla("run", "--help").out.split())
    assert "env var: TRTLA_RUN_MAX_OUTPUT_LEN; default: 32" in text


def test_version() -> None:
    done = process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("trtla 0.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    ran = trtla("completion", shell)
    assert ran.code == 0
    assert "_TRTLA_COMPLETE" in ran.out


def test_completion_of_an_unknown_shell() -> None:
    refused(trtla("completion", "tcsh"), 2, "tcsh", "bash")


def test_completion_lists_commands() -> None:
    env = {"_TRTLA_COMPLETE": "bash_complete", "COMP_WORDS": "trtla ", "COMP_CWORD": "1"}
    done = process(env=env)
    assert "convert" in done.stdout


def test_a_typo_is_guessed() -> None:
    refused(trtla("biuld"), 2, "biuld", "build")
    refused(trtla("run", "--egine-dir", "x"), 2, "--egine-dir", "--engine-dir")
