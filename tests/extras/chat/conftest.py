"""The shipped model, opened once for all chats, and what a line makes of a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from trtla import LLM
from trtla.extras.chat.command import chat
from trtla.extras.chat.model import Reply
from trtla.extras.chat.printer import Printer
from trtla.extras.chat.session import Session
from trtla.extras.chat.settings import ChatSettings, changed
from trtla.llm.answer import Piece


@dataclass
class Shown:
    """What a session printed, by kind, and its answers."""

    out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    steps: list[tuple[int, int, tuple[str, str, str]]] = field(default_factory=list)
    cleared: int = 0
    answers: list[Reply] = field(default_factory=list)


class Recorder(Printer):
    """Keeps what a session prints."""

    def __init__(self) -> None:
        self.shown = Shown()

    def out(self, text: str) -> None:
        if text:  # not the end of an answer's line
            self.shown.out.append(text)

    def note(self, text: str) -> None:
        self.shown.notes.append(text)

    def refuse(self, text: str) -> None:
        self.shown.refusals.append(text)

    def clear(self) -> None:
        self.shown.cleared += 1

    def text(self, pieces: Iterable[Piece]) -> None:
        self.shown.texts.append("".join(text for text, _ in pieces))

    def step(self, number: int, accepted: int, texts: tuple[str, str, str]) -> None:
        self.shown.steps.append((number, accepted, texts))


class RecordedSession(Session):
    """A session that prints into a `Recorder`."""

    def __init__(self, llm: LLM, settings: ChatSettings) -> None:
        self.recorder = Recorder()
        super().__init__(llm, settings, self.recorder, click.Context(chat))


def lines(session: RecordedSession, *given: str) -> Shown:
    """What some lines make of a session."""
    session.recorder.shown = shown = Shown()
    for line in given:
        before = len(session.replies)
        session.handle(line)
        shown.answers += session.replies[before:]
    return shown


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    import trtla

    folder = Path(trtla.__file__).parent / "assets" / "tiny-llama"
    with LLM(folder, dtype="float32", max_batch_size=1, block_reuse=True) as opened:
        yield opened


@pytest.fixture
def session(llm: LLM) -> RecordedSession:
    return RecordedSession(llm, changed(ChatSettings(), {"max_output_len": 24}))
