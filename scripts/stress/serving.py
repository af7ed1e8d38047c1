"""A server as a process, and one completion of it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

SHIPPED = Path(__file__).parents[2] / "trtla" / "assets" / "tiny-llama"
PATH = "/v1/completions"
TEXTS = (
    "def read_file(path",
    "import os\nimport sys\n",
    "The sea in winter is",
    "class Node:\n    def __init__(self",
    "Write a list of ten animals, one a line:\n",
    "Once upon a time there was a clever fox who lived in a forest. ",
    "x = [1, 2, 3, 4, 5, 6, 7, 8, ",
)
Body = dict[str, Any]


@dataclass
class Server:
    """A running server, and its exit code once it has ended."""

    address: str
    pid: int
    code: int | None = None


@contextmanager
def serving(log: Path, *arguments: str) -> Iterator[Server]:
    """`trtla serve` on a free port, once it is healthy; SIGTERM ends it.

    Raises:
        SystemExit: it ends before that.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "trtla", "serve", "--port", str(port), *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stderr=output)
    server = Server(f"http://127.0.0.1:{port}", process.pid)
    try:
        while not _healthy(server.address):
            if process.poll() is not None:
                raise SystemExit(f"the server ended with {process.returncode}; see {log}")
            time.sleep(0.2)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        server.code = process.wait(90)


def _healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.TransportError:
        return False


def client(address: str) -> httpx.AsyncClient:
    """A client with any number of connections."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=address, timeout=600, limits=limits)


async def whole(http: httpx.AsyncClient, body: Body) -> Any:
    """The answer to a request that does not stream."""
    answer = await http.post(PATH, json=body)
    answer.raise_for_status()
    return answer.json()


async def events(http: httpx.AsyncClient, body: Body) -> AsyncIterator[Any]:
    """The documents of a stream; None for its end.

    Raises:
        ValueError: the server reports an error in it.
    """
    async with http.stream("POST", PATH, json={**body, "stream": True}) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            if line == "data: [DONE]":
                yield None
            elif line.startswith("data: "):
                document = json.loads(line[6:])
                if "error" in document:
                    raise ValueError(document["error"]["message"])
                yield document


def busy(metrics: str) -> list[str]:
    """Gauges of requests and cache that are not zero, as they have to be when all is done."""
    gauges = ("trtla_num_requests_running ", "trtla_num_requests_waiting ", "trtla_kv_cache_usage")
    return [
        line for line in metrics.splitlines() if line.startswith(gauges) and float(line.split()[1])
    ]
