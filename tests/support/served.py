"""A real server on the shipped model, in a thread of the test's process, over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import trtla
from trtla import LLM
from trtla.serve.log import RequestLog
from trtla.serve.server import Service, bind
from trtla.settings.serving import ServeSettings

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
JSON = {"Content-Type": "application/json"}


class Served:
    """A server that runs, and how to ask it."""

    def __init__(self, service: Service, address: str) -> None:
        self.service, self.address = service, address
        self.http = httpx.Client(base_url=address, timeout=120)

    @property
    def api(self) -> str:
        """What OpenAI's clients take."""
        return f"{self.address}/v1"

    def complete(self, **body) -> httpx.Response:
        return self.http.post("/v1/completions", json=body)

    def chat(self, **body) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body)

    def connect(self, sent: bytes = b"", *, receive_buffer: int | None = None) -> socket.socket:
        """A raw connection over which these bytes were sent."""
        one = socket.socket()
        if receive_buffer is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        one.settimeout(120)
        host, port = self.address.removeprefix("http://").split(":")
        one.connect((host, int(port)))
        one.sendall(sent)
        return one

    def ask_only(self, path: str = "/v1/completions", *, receive_buffer=None, **body):
        """A client that has asked, and reads nothing."""
        sent = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(sent)}\r\n\r\n"
        return self.connect(head.encode() + sent, receive_buffer=receive_buffer)

    def stats(self):
        """The executor's, now."""
        return self.service.model.engine.llm.executor.stats()


def open_shipped(**more) -> LLM:
    return LLM(SHIPPED, block_reuse=True, **more)


@contextmanager
def serving(
    open_model: Callable[[], LLM] = open_shipped,
    keys: tuple[bytes, ...] = (),
    send_buffer: int | None = None,
    quiet: bool = True,
    **settings,
) -> Iterator[Served]:
    """Serve while the block runs."""
    chosen = ServeSettings(port=0, **settings)
    ready = threading.Event()
    log = RequestLog(as_json=True, quiet=quiet)
    service = Service(chosen, keys, open_model, "tiny", log, lambda *_: ready.set())
    with bind(chosen) as listening:
        if send_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        host, port = listening.getsockname()[:2]
        loop = asyncio.new_event_loop()
        work = threading.Thread(target=lambda: loop.run_until_complete(service.run(listening)))
        work.start()
        assert ready.wait(120)
        served = Served(service, f"http://{host}:{port}")
        try:
            yield served
        finally:
            served.http.close()
            loop.call_soon_threadsafe(service.end)
            work.join(120)
            assert not work.is_alive()
            loop.close()


def slow_down(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each step take 50 ms: LONG texts without drafts take over a minute on any machine."""
    executor = served.service.model.llm._executor
    poll = executor.poll

    def late(timeout=None):
        outputs = poll(timeout)
        time.sleep(0.05)  # not before it: a step is put off while others ask for something
        return outputs

    monkeypatch.setattr(executor, "poll", late)


LONG = {"prompt": "def f(", "max_tokens": 1500, "ignore_eos": True, "temperature": 0, "seed": 1,
        "lookahead": [1, 1, 0]}  # fmt: skip
SHORT = {"prompt": "class A:", "max_tokens": 4, "temperature": 0}


def until(condition, seconds=120.0):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


ASK = {"prompt": "def f(", "max_tokens": 2}


def refused(answer, status, param=None, code=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    return error["message"]


@contextmanager
def server_process(*args: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, on a free port, and its address."""
    command = [sys.executable, *map(str, args), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = next(one for one in process.stderr if "listens on" in one)
            yield process, line.split()[3].rstrip(",")
        finally:
            process.kill()
