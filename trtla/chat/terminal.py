"""A chat at a terminal: line editing, history, completion, colours, live figures, Ctrl-C.

While the line is edited the figures stand in prompt_toolkit's toolbar, while an answer comes in a
row of our own at the same place.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from types import FrameType

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import clear

from trtla.chat.completion import complete
from trtla.chat.events import Busy, ClearScreen, Leave, Streamed
from trtla.chat.history import open_history
from trtla.chat.printer import Printer, harmless
from trtla.chat.session import Session
from trtla.chat.status_row import StatusRow
from trtla.console import Console

_WELCOME = "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves, Alt-Enter makes a line"
_HINT = "Ctrl-D or /quit leaves"
_MENU_ROWS = 5  # kept free below the line, for what it may be completed to
_PATIENCE = 3  # presses of Ctrl-C during one answer, until it is the program that ends


class TerminalPrinter(Printer):
    """Events in colour; remarks stand between the answers."""

    def __init__(self, session: Session, console: Console) -> None:
        super().__init__(console, session.tokenizer)

    @property
    def width(self) -> int:
        """Of the window as it is now."""
        return shutil.get_terminal_size().columns

    def note(self, text: str) -> None:
        """Print a remark, dim."""
        self._console.out(self._console.styled(text, dim=True))

    def refuse(self, text: str) -> None:
        """Print an error, red."""
        self._console.out(self._console.styled(f"error: {text}", fg="red"))

    def clean(self, text: str) -> str:
        """Control characters would steer the terminal."""
        return harmless(text)


class CommandCompleter(Completer):
    """Slash commands and their values."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """What the line up to the cursor may become."""
        for found in complete(document.text_before_cursor, self._session.known):
            yield Completion(found.text, -found.length, display_meta=found.help)


def chat_at_terminal(session: Session, console: Console) -> None:
    """Ask for lines until the user leaves."""
    prompt: PromptSession[str] = PromptSession(
        history=open_history(),
        completer=CommandCompleter(session),
        complete_while_typing=True,
        multiline=True,
        reserve_space_for_menu=_MENU_ROWS,
        prompt_continuation="  ",
        key_bindings=_keys(),
        bottom_toolbar=lambda: _toolbar(session),
    )
    printer = TerminalPrinter(session, console)
    printer.note(_WELCOME)
    with _Interrupts(session) as interrupts, _no_echo():
        while (line := _ask(prompt, printer)) is not None:
            interrupts.answer_begins()
            if not _handle(session, printer, line):
                return


def _ask(prompt: PromptSession[str], printer: Printer) -> str | None:
    """The next line; None to leave."""
    while True:
        try:
            return prompt.prompt(HTML("<b>&gt;</b> "))
        except KeyboardInterrupt:
            printer.note(_HINT)
        except EOFError:
            return None


def _handle(session: Session, printer: Printer, line: str) -> bool:
    """False to leave."""
    with contextlib.ExitStack() as stack:
        row: StatusRow | None = None
        for event in session.handle(line):
            if isinstance(event, Leave):
                return False
            if isinstance(event, ClearScreen):
                clear()
            if isinstance(event, (Streamed, Busy)):
                row = row or stack.enter_context(StatusRow())
                row.show(_live(event))
            printer.show(event)
    return True


def _live(event: Streamed | Busy) -> str:
    figures = event.step.figures
    what = f"{event.what}: " if isinstance(event, Busy) else ""
    return f"{what}{figures.describe()}, {figures.tokens} tokens; Ctrl-C stops"


def _toolbar(session: Session) -> str:
    """The last answer's figures, and how full the context is."""
    context = f"context {session.context} of {session.max_context}"
    if session.last is None:
        return f" {context}"
    figures, reason = session.last.figures, session.last.finish_reason
    return f" {figures.describe()}, {figures.tokens} tokens ({reason}); {context}"


def _keys() -> KeyBindings:
    """Enter sends, also where pasted text has made several lines; Alt-Enter makes a new one."""
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _Interrupts:
    """Ctrl-C while it is in place: stops the answer after its present step, and no more.

    In place for the whole chat: a second press, meant for the same answer, may come when that has
    just ended. A step may also last: the third press during one answer ends the program.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._presses = session, 0

    def __enter__(self) -> _Interrupts:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def answer_begins(self) -> None:
        """Count anew."""
        self._presses = 0

    def _press(self, signum: int, frame: FrameType | None) -> None:
        self._presses += 1
        self._session.stop()
        if self._presses == _PATIENCE:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _no_echo() -> Iterator[None]:
    """Keep what is typed between the prompts off the screen; it is there for the next line."""
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
