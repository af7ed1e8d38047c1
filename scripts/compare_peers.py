#!/usr/bin/env python3
"""What scripts/compare_peers.sh measures: trtla serve beside another server of the same model.

    .venv/bin/python scripts/compare_peers.py FOLDER --peer 'COMMAND with {model} and {port}'

Both servers stay open. In turns each is sent the same load by `trtla bench --serve` while the other
one is stopped (SIGSTOP), so that neither takes the other's cores.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from trtla.extras.bench.documents import LoadDocument
from trtla.machine import cpu
from trtla.results.rows import Row

WAIT_S = 300
"""For a server that opens its model."""
OURS = f"{sys.executable} -m trtla serve -m {{model}} --port {{port}} --max-batch-size 16"
FIGURES = {
    "tokens/s": "tokens_per_s",
    "TTFT, ms": "mean_ttft_ms",
    "TPOT, ms": "mean_tpot_ms",
    "failed": "failed",
}
"""Columns of the table, and what bench calls them."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a session of its own, and where it listens."""

    name: str
    process: subprocess.Popen[bytes]
    url: str

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run inside the block alone."""
        send(signal.SIGCONT, self.process.pid)
        try:
            yield
        finally:
            send(signal.SIGSTOP, self.process.pid)


def send(number: signal.Signals, pid: int) -> None:
    """Send a signal to a process and all that it has started, in whatever groups they are."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            behind_name = (folder / "stat").read_text().rpartition(")")[2]
            parents[int(folder.name)] = int(behind_name.split()[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, number)


@contextmanager
def opened(name: str, command: str, model: str, log: Path) -> Iterator[Server]:
    """Start a server; it is stopped once it answers.

    Raises:
        SystemExit: it ends instead, or does not answer in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.format(model=model, port=port) for word in shlex.split(command)]
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True)
    try:
        server = Server(name, process, f"http://127.0.0.1:{port}")
        await_answer(server, log)
        send(signal.SIGSTOP, process.pid)
        yield server
    finally:
        send(signal.SIGKILL, process.pid)
        process.wait()


@contextmanager
def all_opened(commands: Sequence[tuple[str, str]], model: str) -> Iterator[list[Server]]:
    """Start servers by their names and commands; they end with the block, and with SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield [
            stack.enter_context(opened(name, command, model, logs / name))
            for name, command in commands
        ]


def await_answer(server: Server, log: Path) -> None:
    """Return once the server lists its models; raises as `opened`."""
    end = time.monotonic() + WAIT_S
    while server.process.poll() is None and time.monotonic() < end:
        try:
            if httpx.get(f"{server.url}/v1/models", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"{server.name} does not answer: {log.read_text(errors='replace')[-2000:]}")


def load(server: Server, clients: int, args: argparse.Namespace) -> Row:
    """Send a server the load of so many clients."""
    options = f"--prompts {args.prompts} --num-prompts {args.num_prompts} -n {args.tokens}"
    command = [sys.executable, "-m", "trtla", "bench", "--serve", server.url, *options.split()]
    with server.awake():
        done = subprocess.run(
            [*command, "--concurrency", str(clients), "--temperature", "0", "-q", "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{server.name}, {clients} clients: {done.stderr[-2000:]}")
    return LoadDocument.model_validate_json(done.stdout).rows[0]


def table(rows: dict[tuple[int, str], list[Row]], names: Sequence[str]) -> Iterator[str]:
    """The lines of a table of medians."""
    yield "| clients | server | " + " | ".join(FIGURES) + " |"
    yield "| --- | --- |" + " ---: |" * len(FIGURES)
    for clients in dict.fromkeys(clients for clients, _ in rows):
        for name in names:
            figures = [_median(rows[clients, name], field) for field in FIGURES.values()]
            yield f"| {clients} | {name} | " + " | ".join(figures) + " |"
        first, second = (_rate(rows[clients, name]) for name in names)
        yield f"| {clients} | {names[0]} over {names[1]} | {first / second:.2f} |" + " |" * 3


def _rate(rows: Sequence[Row]) -> float:
    return median(row.tokens_per_s or 0.0 for row in rows) or float("nan")


def _median(rows: Sequence[Row], field: str) -> str:
    values = [value for row in rows if (value := getattr(row, field)) is not None]
    return f"{median(values):.4g}" if values else "-"


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="a Hugging Face folder that both servers open")
    parser.add_argument("--peer", required=True, help="its command, with {model} and {port}")
    parser.add_argument("--ours", default=OURS, help="the same of trtla")
    parser.add_argument("--name", default="peer", help="what the table calls the peer")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--prompts", default="code,chat")
    parser.add_argument("--num-prompts", type=int, default=8, help="of each set")
    parser.add_argument("--tokens", type=int, default=48)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Measure in turns and print the table."""
    args = arguments(words)
    rows: dict[tuple[int, str], list[Row]] = {}
    sides = (("trtla", args.ours), (args.name, args.peer))
    with all_opened(sides, args.model) as servers:
        for turn in range(args.turns + 1):  # the first one warms up
            for clients in map(int, args.clients.split(",")):
                for server in servers if turn % 2 else reversed(servers):
                    row = load(server, clients, args)
                    said = f"{clients} clients, {server.name}: {row.tokens_per_s or 0:.1f} tokens/s"
                    print(f"turn {turn} of {args.turns}, {said}", file=sys.stderr, flush=True)
                    if turn:
                        rows.setdefault((clients, server.name), []).append(row)
    machine = cpu()
    print(f"{machine.model}, {machine.cores} cores; medians of {args.turns} turns\n")
    print("\n".join(table(rows, [name for name, _ in sides])))


if __name__ == "__main__":
    main(sys.argv[1:])
