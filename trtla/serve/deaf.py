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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtla.api.errors import ApiError

_PROGRAM = Path(__file__).with_name("waiting_room.py")
_ANSWERED_S = 10


@contextmanager
def waiting_room(listening: socket.socket, said: ApiError) -> Iterator[None]:
    """Have all connections answered with this error meanwhile."""
    fd = listening.fileno()
    command = [sys.executable, "-I", "-S", str(_PROGRAM), str(fd), json.dumps(said.body)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(fd,))
    assert process.stdin is not None
    try:
        with _plain_signals():
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
def _plain_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGTERM, signal.SIGINT)
    before = {name: signal.signal(name, signal.SIG_DFL) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
