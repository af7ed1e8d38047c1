"""The shipped model, opened once for all chats, and what a line makes of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trtla import LLM
from trtla.chat.events import Event
from trtla.chat.session import Session
from trtla.chat.settings import ChatSettings, changed


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    import trtla

    folder = Path(trtla.__file__).parent / "assets" / "tiny-llama"
    with LLM(folder, dtype="float32", max_batch_size=1, block_reuse=True) as opened:
        yield opened


@pytest.fixture
def session(llm: LLM) -> Session:
    return Session(llm, changed(ChatSettings(), {"sampling.max_output_len": 24}))


def lines(session: Session, *given: str) -> list[Event]:
    """All events of some lines."""
    return [event for line in given for event in session.handle(line)]
