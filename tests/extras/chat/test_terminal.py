"""What the terminal shows, without one: history, metrics, harmless text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory

from trtla import LLM, DraftOptions
from trtla.console import Console
from trtla.extras.chat.model import Tally
from trtla.extras.chat.printer import Printer, harmless
from trtla.extras.chat.session import Session
from trtla.extras.chat.settings import ChatSettings, changed
from trtla.extras.chat.terminal import (
    HISTORY,
    CommandCompleter,
    StatusRow,
    TerminalPrinter,
    open_history,
)
from trtla.llm.answer import Chunk


def test_history_is_kept_for_its_owner(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    history.append_string("one\ntwo")
    assert (tmp_path / HISTORY).stat().st_mode & 0o077 == 0
    assert list(open_history(tmp_path).load_history_strings()) == ["one\ntwo"]


def test_an_unwritable_history_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert isinstance(open_history(tmp_path / "file" / "below"), InMemoryHistory)
    (tmp_path / HISTORY).mkdir()
    assert isinstance(open_history(tmp_path), InMemoryHistory)


def test_a_history_that_becomes_unwritable_is_no_failure(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    (tmp_path / HISTORY).unlink()
    (tmp_path / HISTORY).mkdir()
    history.append_string("still there")
    assert history.get_strings() == ["still there"]


def test_completion_at_the_terminal(session: Session) -> None:
    found = list(CommandCompleter(session).get_completions(Document("/looka"), CompleteEvent()))
    assert [(c.text, c.start_position) for c in found] == [("/lookahead", -6)]


def test_control_characters_are_harmless() -> None:
    assert harmless("a\x1b[2Jb\tc\n\x9b") == "a\ufffd[2Jb\tc\n\ufffd"


@pytest.mark.parametrize("color", ["always", "never"])
def test_accepted_tokens_are_tinted_by_source(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], color: str
) -> None:
    nodes, shown = DraftOptions(nodes=4), []
    with LLM(tiny_llama, lookahead="auto", dtype="float32", draft_options=nodes) as llm:
        settings = {"sampling.max_output_len": 40, "lookahead": "auto"}
        session = Session(llm, changed(ChatSettings(), settings), Printer(Console(color=color)))
        for line in ("Hello, who are you?", "/colors source", "Hello again"):
            session.handle(line)
            shown.append(capsys.readouterr().out)
    assert session.last
    counts = session.last.sources
    assert sum(counts.values()) == session.last.tally.accepted > 0
    assert ["accepted by source: " in text for text in shown] == [False, False, True]
    assert all(f"{name} {count}" in shown[2] for name, count in counts.items() if count)
    assert ["\x1b[93m" in text for text in shown] == [False, False, color == "always"]


def test_terminal_remarks_are_dim_and_errors_red(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(llm, ChatSettings(), TerminalPrinter(Console(color="always")))
    session.handle("/gamma 5")
    session.handle("/gama 5")
    note, error = capsys.readouterr().out.splitlines()
    assert note == "\x1b[2m/gamma is now 5\x1b[0m"
    assert error.startswith("\x1b[31merror: /gama is not a command")


def test_the_status_row_keeps_to_the_last_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "20")
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("trtla.extras.chat.terminal.time", SimpleNamespace(monotonic=lambda: 1.0))
    with StatusRow() as row:
        row.show("a text that is longer than thirty columns")
        row.show("too early for the next one")
    drawn = capsys.readouterr().out
    assert "\x1b[1;19r" in drawn  # text scrolls above
    assert "\x1b[20;1H\x1b[7m a text that is longer than th\x1b[0m" in drawn
    assert "too early" not in drawn
    assert drawn.endswith("\x1b7\x1b[r\x1b[20;1H\x1b[2K\x1b8")


def test_a_tally_counts_the_prefill_apart() -> None:
    chunks = [((1,), 0, None), ((2, 3, 4), 2, 0.5), ((5,), 0, 0.5), ((), 0, 0.0)]
    tally, total = Tally(), Tally()
    for ids, took, time_s in chunks:
        tally.count(Chunk(0, (), ids, took, None), time_s)
    total.add(tally)
    assert (total.tokens, total.steps, total.accepted, total.decoded) == (5, 2, 2, 4)
    assert (total.tokens_per_s, total.tokens_per_step) == (4.0, 2.0)
