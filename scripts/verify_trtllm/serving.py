"""A server on an engine of TensorRT-LLM.

It has to give an answer, the same one as a stream, to bear a cancelled one, to show its figures and
to end on SIGTERM.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from texts import TINY, engine_of, prompts

from trtla import LookaheadConfig
from trtla.build.convert import convert

READY_S, END_S = 900.0, 120.0


def connected(port: int) -> http.client.HTTPConnection:
    """A connection of its own."""
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body; 0 where nothing listens."""
    try:
        asked = connected(port)
        asked.request("GET", path)
        answer = asked.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""


def wait(what: str, condition: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, or end with an error."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not after {seconds:.0f} s")
        time.sleep(0.1)


def post(port: int, **body: Any) -> http.client.HTTPResponse:
    """A completion of the first prompt."""
    asked = connected(port)
    sent = json.dumps({"prompt": prompts()[0], "max_tokens": 32, **body})
    asked.request("POST", "/v1/completions", sent, {"Content-Type": "application/json"})
    answer = asked.getresponse()
    if answer.status != 200:
        raise SystemExit(f"status {answer.status}: {answer.read().decode()}")
    return answer


def events(answer: http.client.HTTPResponse) -> Iterator[str]:
    """The texts of a stream."""
    for line in answer:
        if line.startswith(b"data: {"):
            yield from (choice["text"] for choice in json.loads(line[6:])["choices"])


def exercise(port: int) -> None:
    """Everything that is asked of the server."""
    whole = json.loads(post(port).read())["choices"][0]["text"]
    streamed = "".join(events(post(port, stream=True)))
    if not whole or whole != streamed:
        raise SystemExit(f"the stream is {streamed!r}, the answer {whole!r}")
    cut = post(port, stream=True, max_tokens=200)
    next(events(cut))
    cut.close()
    again = json.loads(post(port).read())["choices"][0]["text"]
    if again != whole:
        raise SystemExit(f"after a cancelled one the answer is {again!r}, before {whole!r}")
    status, figures = get(port, "/metrics")
    if status != 200 or "trtla_request_success_total" not in figures:
        raise SystemExit(f"/metrics: {status}\n{figures}")
    print(figures)


def main() -> int:
    """Serve, exercise, end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    given.lookahead = LookaheadConfig(7, 7, 7)
    checkpoint = convert(TINY, given.folder / "checkpoint", dtype="float16", force=True)
    engine = engine_of(given, checkpoint, "tensorrt-llm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "trtla", "serve", "--engine-dir", str(engine), "--port"]
    server = subprocess.Popen([*command, str(port)])
    try:
        wait("/health", lambda: get(port, "/health")[0] == 200, READY_S)
        exercise(port)
        server.send_signal(signal.SIGTERM)
        return server.wait(END_S)
    finally:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
