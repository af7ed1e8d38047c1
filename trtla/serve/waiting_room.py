"""Answers on the server's socket while a loading model blocks the server's interpreter.

A program of its own, on Python's standard library alone, so that it starts at once: TensorRT-LLM
loads an engine for minutes without releasing the interpreter. All connections are answered with
503. The program ends with its input: when the model is open, and when the server has ended.
"""

from __future__ import annotations

import select
import signal
import socket
import sys
import threading
from contextlib import suppress

_CLIENT_S = 5.0
_MOST = 64  # connections at a time; further ones wait in the socket
_PIECE = 2**16


def answer(connection: socket.socket, body: bytes) -> None:
    """Answer any request once; a body is read and dropped."""
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    with connection, suppress(OSError):
        connection.settimeout(_CLIENT_S)
        received = b""
        while b"\r\n\r\n" not in received and len(received) < _PIECE:
            piece = connection.recv(_PIECE)
            if not piece:
                return
            received += piece
        connection.sendall(head.encode() + (b"" if received.startswith(b"HEAD ") else body))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(_PIECE):
            pass


def wait_on(listening: socket.socket, body: bytes) -> None:
    """Accept connections until the input ends."""
    slots = threading.BoundedSemaphore(_MOST)

    def serve(connection: socket.socket) -> None:
        try:
            answer(connection, body)
        finally:
            slots.release()

    while True:
        ready, _, _ = select.select([sys.stdin, listening], [], [])
        if sys.stdin in ready:
            return
        if slots.acquire(timeout=_CLIENT_S):
            try:
                connection = listening.accept()[0]
            except OSError:  # it has closed
                slots.release()
            else:
                threading.Thread(target=serve, args=(connection,)).start()


if __name__ == "__main__":
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # it ends with the server
    wait_on(socket.socket(fileno=int(sys.argv[1])), sys.argv[2].encode())
