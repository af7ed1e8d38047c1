"""scripts/demo.sh: what it says is true of what it measured, and it is quiet until a step fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import demo  # noqa: E402

from trtla.files import user_cache  # noqa: E402


def row(name: str, ratio: float, tokens: int = 100, *, same: bool = True) -> demo.Row:
    return demo.Row(name, tokens, 100.0, 100.0 * ratio, ratio, 1.0 + 1 / 3, same, 1.0)


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ((1.0, 3.0), "these answers come 1.50x as fast with lookahead (3.00x for b)"),
        ((0.8, 1.2), "lookahead pays only where text repeats (1.20x for b; 0.96x over all)"),
        ((0.8, 1.04), "lookahead is not faster (0.90x over all)"),
        ((0.99, 0.98), "lookahead is not faster (0.98x over all)"),
    ],
)
def test_the_verdict_is_true_of_the_figures(ratios: tuple[float, float], said: str) -> None:
    rows = [row("a", ratios[0]), row("b", ratios[1])]
    found = demo.verdict(rows, "this machine (2 cores of X)")
    same = "and all 2 texts are the same as without it."
    assert found == f"On this machine (2 cores of X), {said}, {same}"


def test_a_changed_text_is_all_that_the_verdict_speaks_of() -> None:
    rows = [row("a", 2.0), row("b", 3.0, same=False)]
    assert demo.verdict(rows, "X") == ("Lookahead changed the text of b: please report this fault.")


def test_longer_answers_weigh_more() -> None:
    assert demo.overall([row("a", 1.0, 300), row("b", 2.0, 100)]) == pytest.approx(400 / 350)


@pytest.mark.parametrize(
    ("ratios", "certain"),
    [
        ([1.0] * 4, False), ([1.0] * 5, True), ([1.0, 1.2] * 3, False), ([1.0, 1.2] * 7, False),
        ([1.0, 1.2] * 8, True), ([0.99, 1.01, 1.0] * 2, True),
    ],
)  # fmt: skip
def test_rounds_end_when_the_ratio_is_certain(ratios: list[float], certain: bool) -> None:
    assert demo.is_certain(ratios) == certain


def test_figures_are_rounded_and_stand_in_columns() -> None:
    lines = demo.table([row("a", 1.23456, 7), row("a summary", 10.0, same=False)])
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["a", "7", "100", "123", "1.23x", "1.3", "yes"]
    assert lines[2].split()[-1] == "NO"


def test_an_answer_is_cut_to_a_few_lines_and_keeps_what_was_accepted() -> None:
    text = "one two\n\n" + "word " * 30 + "\n\tcode\n" + "x\n" * 9
    pieces = [(text[:4], False), (text[4:20], True), (text[20:], False)]
    lines = demo.answer_lines(pieces)
    assert lines[0] == [("one ", False), ("two", True)]
    assert lines[1][0] == ("word word w", True)
    assert len(lines) == demo.SHOWN_LINES
    assert lines[-1][-1] == (" ...", False)
    assert max(sum(len(text) for text, _ in line) for line in lines) <= demo.WIDTH


SETUP = ". scripts/setup.sh; "


def bash(code: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", code], cwd=folder, capture_output=True, text=True,
        env={**os.environ, **env}, check=False,
    )  # fmt: skip


def test_a_step_prints_one_line_unless_it_fails(tmp_path: Path) -> None:
    talk = "talk() { echo Collecting x; echo a warning >&2; return $1; }; "
    ran = bash(f"{SETUP} {talk} setup_step 'installing' {tmp_path}/log talk 0", ROOT)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.fullmatch(r"installing +0 s\n", ran.stdout)
    ran = bash(f"{SETUP} {talk} setup_step 'installing' {tmp_path}/log talk 3", ROOT)
    assert ran.returncode == 1
    assert re.fullmatch(r"installing +failed\n\n", ran.stdout)
    assert ran.stderr == "Collecting x\na warning\n"


@pytest.mark.parametrize("code", [0, 1])
def test_pip_is_seen_only_where_it_fails(tmp_path: Path, code: int) -> None:
    """With a Python whose pip is a script: it is bash that is tried."""
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    for name in ("constraints.txt", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'    "-m venv "*) mkdir -p .venv/bin; cp {fake} .venv/bin/python;;\n'
        f'    "-m pip "*) echo Collecting torch; echo "ERROR: no network" >&2; exit {code};;\n'
        "esac\n"
    )
    fake.chmod(0o755)
    ran = bash(f"{SETUP} setup_venv light", tmp_path, PYTHON=str(fake))
    assert ran.returncode == code
    assert len(ran.stdout.splitlines()) == (2 if code else 1)
    assert "Collecting" not in ran.stdout
    assert ("ERROR: no network" in ran.stderr) == ("hint: all of its" in ran.stderr) == bool(code)
    assert (tmp_path / ".venv" / "trtla-light").exists() == (code == 0)
    again = bash(f"{SETUP} setup_venv light", tmp_path, PYTHON=str(fake))
    assert bool(again.stdout) == bool(code)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder like a clone that has been set up, in which no model has been downloaded."""
    for name in ("scripts", "trtla", "constraints.txt", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("python", ""), ("trtla", "-m trtla")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / name).chmod(0o755)
    bash(f"{SETUP} setup_stamp >.venv/trtla-light", tmp_path)
    cache = tmp_path / "cache" / "trtla"
    cache.mkdir(parents=True)
    for kept in user_cache().iterdir() if user_cache().is_dir() else ():
        if kept.name != "models":  # what has been compiled stays
            (cache / kept.name).symlink_to(kept)
    return tmp_path


@pytest.mark.deep
def test_without_a_network_the_shipped_model_serves(clone: Path) -> None:
    ran = bash(
        "scripts/demo.sh", clone, XDG_CACHE_HOME=str(clone / "cache"), PIP_NO_INDEX="1",
        PYTHONPATH=str(ROOT), PIP_FIND_LINKS="", PIP_CONFIG_FILE="/dev/null",
    )  # fmt: skip
    assert ran.returncode == 0, ran
    assert ran.stderr.count("\n") == 1
    assert "the small model that ships with trtla" in ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) < 35
    assert max(map(len, lines)) <= 200
    (said,) = [line for line in lines if line.startswith("On this machine (")]
    assert said.endswith("and all 3 texts are the same as without it.")
    assert sum(line.endswith("yes") for line in lines) == 3
    assert not re.search(r"\d\.\d{3}", ran.stdout)
    assert lines[-1] == ".venv/bin/trtla chat -m demo-output/engine"
    assert (clone / "demo-output" / "engine").is_dir()
