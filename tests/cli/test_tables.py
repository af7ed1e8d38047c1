"""Tables on narrow terminals, where no heading is cut, and elsewhere."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.support.command import known, needs, trtla
from trtla.cli.app import execute
from trtla.console import drawn

HEADINGS = (
    "arm",
    "tokens/s",
    "speed-up",
    "acceptance",
    "TTFT ms",
    "distinct 4-grams",
    "texts as ar",
)
ROWS = [
    ["lookahead auto", "123.40", "1.05", "0.31", "12.30", "1.00", "20 of 20 (from 12)"],
    ["ar", "117.00", "1.00", "-", "12.10", "1.00", "-"],
]
WIDTHS = pytest.mark.parametrize("width", [40, 60, 80])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(width: int, monkeypatch: pytest.MonkeyPatch, *args: str | Path) -> str:
    """What a command prints on a terminal of this width."""
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", screen)
    assert execute([str(arg) for arg in args]) == 0
    return screen.getvalue()


def words(text: str) -> set[str]:
    return set(text.split())


@WIDTHS
def test_nothing_is_cut(width: int) -> None:
    text = drawn(HEADINGS, ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    assert words(" ".join(HEADINGS)) <= words(text)
    assert words(" ".join(" ".join(row) for row in ROWS)) <= words(text)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_columns_go_on_below_behind_the_first_one() -> None:
    assert len(drawn(HEADINGS, ROWS, 200).split("\n\n")) == 1
    parts = drawn(HEADINGS, ROWS, 60).split("\n\n")
    assert len(parts) > 1
    assert all(words("lookahead auto ar") <= words(part) for part in parts)


def test_a_long_value_is_folded() -> None:
    value = "python-" + "x" * 100
    text = drawn(("what", "value"), [["Python", value]], 60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("x") == 100


@needs("bench")
@pytest.mark.parametrize("width", [60, 80])
def test_bench_keeps_its_headings(
    width: int, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tmp_path / "p.txt"
    prompt.write_text("ab\n")
    bench = ("bench", engine, "--prompts", prompt, "-n", "4", "--rounds", "1", "-q", "--wide")
    text = on_terminal(width, monkeypatch, *bench, "--temperature", "0")
    table = text[text.index("\N{BOX DRAWINGS HEAVY DOWN AND RIGHT}") :]
    assert {"tokens/s", "efficiency", "bandwidth", "4-grams", "speed-up"} <= words(table)
    assert max(map(len, table.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80])
def test_commands_keep_their_headings(
    width: int, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", engine, "-p", "ab", "-n", "4", "--wide")
    for args in known(("doctor",), ("inspect", engine), run):
        text = on_terminal(width, monkeypatch, *args)
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
        assert args[0] != "run" or {"tokens/step", "accepted", "drafted"} <= words(text)
        assert args[0] == "run" or max(map(len, text.splitlines())) <= width


def test_elsewhere_a_table_is_one_whatever_columns_says(engine: Path) -> None:
    run = ("run", engine, "-p", "ab", "-n", "4")
    lines = trtla(*run, env={"COLUMNS": "60"}).out.splitlines()
    (heading, *rows) = [line for line in lines if line.startswith("|")]
    assert {"tokens/step", "tokens/s"} <= words(heading)
    assert "accepted" not in heading
    assert len(rows) == 2  # the rule, and the text


def test_a_long_prompt_takes_one_line_on_a_terminal(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = "first" + " ab" * 37 + " last"
    text = on_terminal(40, monkeypatch, "run", engine, "-p", prompt, "-n", "4")
    assert text.startswith('Input [Text 0]: "first ab ab')
    assert f' last ({len(prompt)} characters)"\n' in text
    assert prompt not in text
    assert prompt in trtla("run", engine, "-p", prompt, "-n", "4").out
