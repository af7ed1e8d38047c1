"""The parts of the terminal, without one: history, completion, colours, statistics."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory

from trtla import LLM
from trtla.console import Console
from trtla.extras.chat.command import chat
from trtla.extras.chat.model import Reply, speed, tokens_per_s
from trtla.extras.chat.session import Session
from trtla.extras.chat.settings import ChatSettings
from trtla.extras.chat.terminal import HISTORY, TerminalPrinter, completer, open_history, toolbar
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


def test_completion_at_the_terminal(session: Session) -> None:
    def completed(text: str) -> list[str]:
        items = completer(session).get_completions(Document(text), CompleteEvent())
        return [item.text for item in items]

    assert completed("/looka") == ["/lookahead"]
    assert completed("/ngram_") == ["/ngram_kind", "/ngram_order"]
    assert completed("hello") == completed("say /looka") == []


@pytest.mark.parametrize("color", ["always", "never"])
def test_accepted_tokens_are_green_and_control_characters_harmless(
    llm: LLM, capsys: pytest.CaptureFixture[str], color: str
) -> None:
    TerminalPrinter(Console(color=color)).text([("a\x1b[2J", False), ("b", True)])
    green = ("\x1b[32m", "\x1b[0m") if color == "always" else ("", "")
    assert capsys.readouterr().out == f"a\ufffd[2J{green[0]}b{green[1]}"


def test_a_word_that_leaves_its_line_begins_the_next_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "13")
    printer = TerminalPrinter(Console(color="never"))
    printer.text([("The verif", False), ("ication", True)])
    printer.out("")
    printer.text([("is", False)])
    assert capsys.readouterr().out == "The verif\x1b[5G\x1b[K\nverification\nis"


def test_terminal_remarks_are_dim_and_errors_red(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = TerminalPrinter(Console(color="always"))
    session = Session(llm, ChatSettings(), printer, click.Context(chat))
    session.handle("/gamma 5")
    session.handle("/gama 5")
    note, error = capsys.readouterr().out.splitlines()
    assert note == "\x1b[2m/gamma is now 5\x1b[0m"
    assert error.startswith("\x1b[31merror: /gama is not a command")
    session.handle("/system \x1b[2J")
    session.handle("/help")
    assert "\x1b[2J" not in capsys.readouterr().out


def test_the_toolbar_shows_the_last_answer_and_the_context(session: Session) -> None:
    assert toolbar(session) == " context 0 of 2048"
    session.handle("Return the number of items.")
    (reply,) = session.replies
    shown = f" {speed(reply)}, 24 tokens (length); context {session.context} of 2048"
    assert toolbar(session) == shown


def test_a_reply_counts_the_prefill_apart() -> None:
    replies = [Reply(1), Reply(1)]
    for reply in replies:
        for at, ids in enumerate([(1,), (2, 3, 4), (5,), ()]):
            reply.add(Chunk(0, (), ids, 0, None, at=at / 4))
    assert speed(*replies) == "5 tokens/s, 2.00 tokens per step"
    assert tokens_per_s(replies) == 8 / 1.5
    assert speed() == "0 tokens/s, 1.00 tokens per step"
