"""A chat from a script: one line a message or command, answers on stdout, all else on stderr."""

from __future__ import annotations

from collections.abc import Iterable

from trtla.chat.events import Leave
from trtla.chat.printer import Printer
from trtla.chat.session import Session


def chat_piped(session: Session, lines: Iterable[str], printer: Printer) -> None:
    """Handle lines until they end or one leaves."""
    for line in lines:
        for event in session.handle(line.rstrip("\r\n")):
            if isinstance(event, Leave):
                return
            printer.show(event)
