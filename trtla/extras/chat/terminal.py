"""A chat at a terminal: line editing, history, completion, colours, statistics, Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import clear

from trtla.console import Console, counted
from trtla.extras.chat.model import speed
from trtla.extras.chat.printer import Printer, harmless
from trtla.extras.chat.session import Session
from trtla.extras.chat.wrapping import Paint, WordWrap
from trtla.files import user_cache

HISTORY = "chat_history"

WELCOME = "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves, Alt-Enter makes a line"
_HINT = "Ctrl-D or /quit leaves"
_MENU_ROWS = 5  # kept free below the line, for completions
_PATIENCE = 3  # presses of Ctrl-C during one answer, after which the program ends


class TerminalPrinter(Printer):
    """Prints in colour, with line breaks between words, and remarks between the answers."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._words = WordWrap()

    def out(self, text: str) -> None:
        super().out(text)
        self._words.reset()

    def flow(self, text: str, paint: Paint) -> str:
        return self._words.add(text, paint, shutil.get_terminal_size().columns - 1)

    def clean(self, text: str) -> str:
        return harmless(text)

    def note(self, text: str) -> None:
        self._console.out(self._console.styled(harmless(text), dim=True))

    def refuse(self, text: str) -> None:
        self._console.out(self._console.styled(f"error: {harmless(text)}", fg="red"))

    def clear(self) -> None:
        clear()


def chat_at_terminal(printer: TerminalPrinter, session: Session) -> int:
    """Read lines until the user leaves; always 0, since the user has seen all refusals."""
    prompt: PromptSession[str] = PromptSession(
        history=open_history(),
        completer=completer(session),
        complete_while_typing=True,
        multiline=True,
        reserve_space_for_menu=_MENU_ROWS,
        prompt_continuation="  ",
        key_bindings=_keys(),
        bottom_toolbar=lambda: toolbar(session),
    )
    printer.note(WELCOME)
    with _ctrl_c_stops(session), _no_echo():
        while (line := _ask(prompt, printer)) is not None and session.handle(line):
            pass
    return 0


def completer(session: Session) -> WordCompleter:
    """Return a completer of the slash commands' names."""
    return WordCompleter([f"/{name}" for name in session.commands.names], sentence=True)


def _ask(prompt: PromptSession[str], printer: Printer) -> str | None:
    while True:
        try:
            return prompt.prompt(HTML("<b>&gt;</b> "))
        except KeyboardInterrupt:
            printer.note(_HINT)
        except EOFError:
            return None


def toolbar(session: Session) -> str:
    """Return the last answer's speed, and the use of the context."""
    context = f"context {session.context} of {session.max_context}"
    if not session.replies:
        return f" {context}"
    last = session.replies[-1]
    tokens = counted(len(last.ids), "token")
    return f" {speed(last)}, {tokens} ({last.finish_reason}); {context}"


def _keys() -> KeyBindings:
    """Bind Enter to send, even pasted text of several lines, and Alt-Enter to a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


@contextmanager
def _ctrl_c_stops(session: Session) -> Iterator[None]:
    """Let Ctrl-C only stop the answer after its present step; the third press ends the program.

    It holds for the whole chat: a second press may come when the answer has just ended.
    """

    def press(signum: int, frame: FrameType | None) -> None:
        session.stops += 1
        if session.stops == _PATIENCE:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _no_echo() -> Iterator[None]:
    """Do not echo text that is typed during an answer; the next prompt receives it."""
    before, quiet = termios.tcgetattr(sys.stdin), termios.tcgetattr(sys.stdin)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def open_history(folder: Path | None = None) -> History:
    """Open the history of all chats, in a file that only its owner can read."""
    path = (folder or user_cache()) / HISTORY
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("a+", encoding="utf-8") as file:
            file.read(1)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
