"""While a model loads without letting Python run: another program answers, signals end the server.

See waiting_room.py for the answers. Handlers in Python would hear of a signal when the model is
open: until then the system's own end the process, which has no texts yet.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from trtla.api.errors import ApiError

_PROGRAM = Path(__file__).with_name("waiting_room.py")
_ANSWERED_S = 10
Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


@contextmanager
def waiting_room(listening: socket.socket, said: ApiError) -> Iterator[None]:
    """Have all connections answered with this error meanwhile."""
    fd = listening.fileno()
    command = [sys.executable, "-I", "-S", str(_PROGRAM), str(fd), json.dumps(said.body)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(fd,))
    assert process.stdin is not None
    try:
        with signals_to(signal.SIG_DFL):
            yield
    finally:
        process.stdin.close()
        threading.Thread(target=_end, args=(process,), daemon=True).start()


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends with its input; connections that it has taken are answered first."""
    try:
        process.wait(_ANSWERED_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def signals_to(handler: Handler) -> Iterator[None]:
    """Have signals that end the server handled by this one; of use in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.signal(name, handler) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, old in before.items():
            signal.signal(name, old)
