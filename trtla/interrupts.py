"""Signals end the program soon, from its first moment on, and with nothing left behind.

The signal is raised in the main thread as KeyboardInterrupt, which unwinds the program. Imports may
swallow that or abort in C++, and a long call into C delays it: there the process ends at once,
after running the functions of its `undone` blocks. This is the first file that runs, and imports as
little as it can.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # the import of typing takes as long as all the others here
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType
    from typing import Any, NoReturn
else:
    import _signal as signal  # without the enumerations of `signal`, whose import takes as long

_EVERY_S = 0.1
_NOTICED_WITHIN_S = 0.6
"""Longest time that the main thread may stay in one call into C."""
_UNWOUND_WITHIN_S = 3.0
_SAID_WITHIN_S = 1.0
_IMPORTS = "<frozen importlib._bootstrap>"
_NAMES: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Interrupts:
    """The handler of signals that end the program; one per process.

    A watching thread is notified of every signal at once. It raises swallowed ones again, and ends
    the process where the main thread does not.
    """

    def __init__(self) -> None:
        self.came: int | None = None
        """The signal, once the main thread has handled one."""
        self._undo: list[Callable[[], Any]] = []
        self._words: list[Callable[[], Any]] = []
        self._again = False
        self._code: int | None = None
        self._mouth = _thread.allocate_lock()
        self._silent = _thread.allocate_lock()
        self._silent.acquire()

    def install(self) -> None:
        """Handle SIGINT, unless the caller ignores it (nohup) or this is not the main thread."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        try:
            signal.signal(signal.SIGINT, self)
        except ValueError:
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        _thread.start_new_thread(self._watch, (reading, _thread.get_ident()))

    def terminable(self) -> None:
        """Let SIGTERM end the program as SIGINT does, if SIGINT is handled."""
        if self._handles(signal.SIGINT):
            signal.signal(signal.SIGTERM, self)

    def undone(self, undo: Callable[[], Any]) -> _While:
        """A block; if the process ends at once within it, `undo` is called first."""
        return _While(self._undo, undo, kept=False)

    def saying(self, word: Callable[[], str]) -> _While:
        """A block; if a signal ends the program within it, `word` is printed too."""
        return _While(self._words, word, kept=True)

    def say(self) -> int:
        """Print why the program ended, once; return the exit code as shells count it."""
        number = self.came or signal.SIGINT
        if self._mouth.acquire(blocking=False):
            last = f"error: {_NAMES[number]}"
            _print([*filter(None, map(_tried, self._words)), last])
            self._silent.release()
        elif self._silent.acquire(timeout=_SAID_WITHIN_S):  # another thread is printing
            self._silent.release()
        return 128 + number

    def end(self, code: int) -> int:
        """Note that only the interpreter's own end is left, and the exit code."""
        self._code = code
        return code

    def leave(self, code: int) -> NoReturn:
        """End the process at once, after the `undone` functions of the current blocks."""
        for undo in reversed(self._undo):
            _tried(undo)
        os._exit(code)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again, self._again, self.came = self._again, False, number
        if self._code is not None:
            os._exit(self._code)
        if self._mouth.locked() or (again and _unwinding()) or _reporting(frame):
            return  # the other thread raises it again
        if _importing(frame):
            self._end_by(number)
        sys.unraisablehook = _unless_interrupted
        raise KeyboardInterrupt

    def _handles(self, number: int) -> bool:
        return signal.getsignal(number) is self

    def _end_by(self, number: int) -> NoReturn:
        self.came = number
        self.leave(self.say())

    def _watch(self, pipe: int, main: int) -> None:
        number = os.read(pipe, 1)[0]
        while not self._handles(number):  # another handler's, which ends in its own way
            number = os.read(pipe, 1)[0]
        began = time.monotonic()
        while self._code is None:
            time.sleep(_EVERY_S)
            heard = self.came is not None
            if time.monotonic() - began > (_UNWOUND_WITHIN_S if heard else _NOTICED_WITHIN_S):
                self._end_by(number)
            if heard and self._handles(number):
                self._again = True
                signal.pthread_kill(main, number)
        time.sleep(_NOTICED_WITHIN_S)
        os._exit(self._code)  # other threads hold up the interpreter's end


class _While:
    """An entry of a list for the duration of a block; `kept`: also after an error in it.

    contextlib would be one more import.
    """

    def __init__(
        self, entries: list[Callable[[], Any]], entry: Callable[[], Any], *, kept: bool
    ) -> None:
        self._entries, self._entry, self._kept = entries, entry, kept

    def __enter__(self) -> None:
        self._entries.append(self._entry)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or not self._kept:
            self._entries.remove(self._entry)


def _tried(act: Callable[[], Any]) -> Any:
    """Return `act()`, or None where it fails: the process ends in any case."""
    try:
        return act()
    except Exception:
        return None


def _print(lines: list[str]) -> None:
    """Write to stderr, below the last row of a terminal; without locks that may be held."""
    try:
        start = "\n" if sys.stderr.isatty() else ""
        text = start + "".join(f"{line}\n" for line in lines)
        os.write(sys.stderr.fileno(), text.encode(errors="replace"))
    except (OSError, ValueError, AttributeError):  # closed, or no file
        return


def _importing(frame: FrameType | None) -> bool:
    return any(code.co_filename == _IMPORTS for code in _running(frame))


def _reporting(frame: FrameType | None) -> bool:
    """Return True while a lost error is handled: Python would print one that is raised there."""
    return any(code is _unless_interrupted.__code__ for code in _running(frame))


def _running(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _unwinding() -> bool:
    """Return True while KeyboardInterrupt is handled, that is, during clean-up."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _unless_interrupted(lost: Any) -> None:
    """Drop an interrupt that a finaliser swallows, as it is raised again; report other errors."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


INTERRUPTS = Interrupts()
