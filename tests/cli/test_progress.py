"""Progress of long commands: a bar at a terminal, lines in a log, nothing with --quiet."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.support.command import needs, trtla
from trtla import LLM, SamplingParams, console
from trtla.cli.run import reading
from trtla.console import Console
from trtla.llm.prompt import PromptRequest


def test_a_log_has_a_line_at_both_ends_of_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().progress("summarize", "articles") as progress:
        for done in range(21):
            progress(done, 20)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "summarize: 0 of 20 articles\nsummarize: 20 of 20 articles, 0 s\n")


def test_between_them_a_log_says_what_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter((0.0, 5.0, 9.0, 20.0, 200.0))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(seconds))
    with Console().progress("convert") as progress:
        for done in (1, 2, 4, 40):
            progress(done * 10**6, 40 * 10**6)
    first, second, last = capsys.readouterr().err.splitlines()
    assert first == "convert: 1 of 40 MB, 5 s, 3 min left"
    assert second == "convert: 4 of 40 MB, 20 s, 3 min left"
    assert last == "convert: 40 of 40 MB, 3 min"


def test_what_was_done_before_says_nothing_about_the_speed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter((0.0, 1.0, 20.0))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(seconds))
    with Console().progress("batch", "lines", lambda: "2 failed", 50) as progress:
        for done in (50, 60):
            progress(done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "batch: 50 of 100 lines, 2 failed",
        "batch: 60 of 100 lines, 2 failed, 20 s, 80 s left",
    ]


def test_a_terminal_has_a_bar_with_notes_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    printer = Console()
    with printer.progress("tune", "rounds") as outer, printer.progress("bench", "cells") as inner:
        outer(1, 2)
        printer.note("note: a round")
        outer(2, 2)
        inner(3, 3)
    assert "note: a round" in screen.getvalue()
    assert "2/2" in screen.getvalue()
    assert "3/3" in screen.getvalue()
    assert sys.stderr is screen


@needs("bench")
def test_bench_reports_where_it_is(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "two.jsonl"
    prompts.write_text("".join(f'{{"category": "own", "text": "{n}"}}\n' for n in (1, 2)))
    bench = ("bench", "-m", engine, "--prompts", prompts, "-n", "4", "--rounds", "2")
    monkeypatch.setattr("trtla.extras.bench.rounds._SLOW", 0.0)
    monkeypatch.setattr("trtla.extras.bench.rounds._LONG_S", 0.0)
    ran = trtla(*bench)
    # At 2 temperatures both arms decode a prompt to warm up, then 2 prompts in 2 rounds.
    assert "bench: 0 of 20 decodings\n" in ran.err
    assert "bench: 20 of 20 decodings, " in ran.err
    assert ran.err.count("note: lookahead auto takes about ") == 1
    assert trtla(*bench, "-q").err == ""


def test_convert_reports_where_it_is(model: Path, tmp_path: Path) -> None:
    convert = ("convert", "--model-dir", model, "--output-dir")
    assert "convert: 0 of 0 MB, " in trtla(*convert, tmp_path / "one").err
    assert trtla(*convert, tmp_path / "two", "-q").err == ""


def test_a_terminal_shows_that_a_long_prompt_is_read(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(reading, "_WORTH_S", 0.0)
    with LLM(engine) as llm:
        request = PromptRequest("text 0", "abc", SamplingParams(4))
        with reading.reading(Console(), llm, [request]) as read:
            read()
    assert "reading 3 tokens" in screen.getvalue()
