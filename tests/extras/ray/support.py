"""`trtla serve --ray` as a process, and the processes that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import trtla
from tests.support.command import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from stress.replicas import replicas_of

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"


def wait_until(true: Callable[[], object], seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.1)


def descendants(process: int) -> set[int]:
    """All processes below one."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
    found, size = {process}, 0
    while len(found) > size:
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found - {process}


def alive(processes: set[int]) -> set[int]:
    found = set()
    for process in processes:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(process)
    return found


class Server:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str], address: str, log: Path) -> None:
        self.process, self.address, self._log = process, address, log
        self.http = httpx.Client(base_url=address, timeout=120)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def complete(self, **body) -> dict:
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text(self, **body) -> str:
        return self.complete(**body)["choices"][0]["text"]

    def metric(self, name: str) -> float:
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"trtla_{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def replicas(self) -> list[int]:
        return replicas_of(self.process.pid)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


def start(log: Path, *flags: object, model: Path = SHIPPED) -> subprocess.Popen[str]:
    """The command, its stderr in a file."""
    command = [sys.executable, "-m", "trtla", "serve", "-m", model, "--port", 0, *flags]
    with log.open("w") as output:
        return subprocess.Popen(
            list(map(str, command)),
            stderr=output,
            stdout=output,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


@contextmanager
def serving(log: Path, *flags: object) -> Iterator[Server]:
    process = start(log, "--ray", *flags)
    try:
        wait_until(lambda: "listens on " in log.read_text() or process.poll() is not None, 180)
        assert process.poll() is None, log.read_text()
        address = log.read_text().partition("listens on ")[2].partition(",")[0]
        server = Server(process, address, log)
        yield server
        server.http.close()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
