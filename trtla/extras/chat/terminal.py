"""A chat at a terminal: line editing, history, completion, colours, live speed, Ctrl-C.

While a line is edited, the speed is in prompt_toolkit's toolbar; during an answer it is in a row of
our own at the same position.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import clear

from trtla.console import Console, counted
from trtla.extras.chat.printer import Printer, harmless
from trtla.extras.chat.session import Session
from trtla.extras.chat.slash_commands import complete
from trtla.extras.chat.wrapping import Paint, WordWrap
from trtla.files import user_cache

HISTORY = "chat_history"

WELCOME = "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves, Alt-Enter makes a line"
_HINT = "Ctrl-D or /quit leaves"
_MENU_ROWS = 5  # kept free below the line, for completions
_PATIENCE = 3  # presses of Ctrl-C during one answer, after which the program ends

_EVERY_S = 0.1  # between two updates of the status row
_SAVE, _BACK, _CLEAR_ROW = "\x1b7", "\x1b8", "\x1b[2K"
_WHOLE = "\x1b[r"  # no scroll region
_ROOM_BELOW = "\x1bD\x1b[A"  # down, which scrolls in the last row, and up; the column stays
_REVERSED, _PLAIN = "\x1b[7m", "\x1b[0m"


class TerminalPrinter(Printer):
    """Prints in colour, with remarks between the answers and the live speed in the last row."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.status = StatusRow()
        self._words = WordWrap()

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns

    def out(self, text: str) -> None:
        super().out(text)
        self._words.reset()

    def flow(self, text: str, paint: Paint) -> str:
        return self._words.add(text, paint, self.width - 1)

    def note(self, text: str) -> None:
        self._console.out(self._console.styled(harmless(text), dim=True))

    def refuse(self, text: str) -> None:
        self._console.out(self._console.styled(f"error: {harmless(text)}", fg="red"))

    def clear(self) -> None:
        clear()

    def live(self, text: str) -> None:
        self.status.show(text)

    def clean(self, text: str) -> str:
        return harmless(text)


class CommandCompleter(Completer):
    """Slash commands and their values."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed, items = complete(document.text_before_cursor, self._session.known)
        for item in items:
            yield Completion(item.value, -len(typed), display_meta=item.help)


def chat_at_terminal(printer: TerminalPrinter, session: Session) -> int:
    """Read lines until the user leaves; always 0, since the user has seen all refusals."""
    prompt: PromptSession[str] = PromptSession(
        history=open_history(),
        completer=CommandCompleter(session),
        complete_while_typing=True,
        multiline=True,
        reserve_space_for_menu=_MENU_ROWS,
        prompt_continuation="  ",
        key_bindings=_keys(),
        bottom_toolbar=lambda: toolbar(session),
    )
    printer.note(WELCOME)
    with _Interrupts(session) as interrupts, _no_echo():
        while (line := _ask(prompt, printer)) is not None:
            interrupts.presses = 0
            with printer.status:
                goes_on = session.handle(line)
            if not goes_on:
                break
    return 0


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
    if session.last is None:
        return f" {context}"
    tally, reason = session.last.tally, session.last.finish_reason
    return f" {tally.describe()}, {counted(tally.tokens, 'token')} ({reason}); {context}"


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


class _Interrupts:
    """A handler of Ctrl-C, which only stops the answer after its present step.

    It is in place for the whole chat: a second press, meant for the same answer, may come when that
    has just ended. A step may be long, too: the third press during one answer ends the program.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.presses = session, 0

    def __enter__(self) -> _Interrupts:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, signum: int, frame: FrameType | None) -> None:
        self.presses += 1
        self._session.stop()
        if self.presses == _PATIENCE:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _no_echo() -> Iterator[None]:
    """Do not echo text that is typed between the prompts; the next prompt receives it."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = termios.tcgetattr(sys.stdin)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


class _CarefulHistory(FileHistory):
    """A file that may become unwritable during the chat."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


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
    return _CarefulHistory(str(path))


class StatusRow:
    """The terminal's last row, from the first `show` within the context to its end.

    Text scrolls above it. ANSI only: a scroll region without the last row.
    """

    def __init__(self) -> None:
        self._rows = 0
        """The window's rows when the last one was reserved; 0: it is not reserved."""
        self._due = math.inf

    def __enter__(self) -> StatusRow:
        self._due = 0.0
        return self

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EVERY_S
        columns, rows = shutil.get_terminal_size()
        if rows != self._rows:  # the first time, or the window was resized
            self._rows = rows
            _write(f"{_SAVE}{_WHOLE}{_BACK}{_ROOM_BELOW}")
            _write(f"{_SAVE}\x1b[1;{max(rows - 1, 1)}r{_BACK}")
        line = f" {text}"[:columns].ljust(columns)
        _write(f"{_SAVE}\x1b[{rows};1H{_REVERSED}{line}{_PLAIN}{_BACK}")

    def __exit__(self, *exc: object) -> None:
        if self._rows:
            _write(f"{_SAVE}{_WHOLE}\x1b[{self._rows};1H{_CLEAR_ROW}{_BACK}")
        self._rows, self._due = 0, math.inf


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
