#!/usr/bin/env python3
"""What scripts/compare_proposers.sh measures: servers of one model that draft in different ways.

    .venv/bin/python scripts/compare_proposers.py FOLDER \\
        --server plain 'COMMAND with {model} and {port}' --server ngram 'COMMAND'

All stay open. Each prompt is sent to each of them in turn, greedy, one at a time, while the others
are stopped. Prompts come once, so that no server has seen them. vLLM's metrics count the drafts.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from trtla.data.prompt_sets import Question, load_sets
from trtla.errors import UsageError
from trtla.machine import cpu

WARM_UP = Question(("Once upon a time",))
DRAFTED, ACCEPTED = (f"vllm:spec_decode_num_{kind}_tokens_total" for kind in ("draft", "accepted"))


WAIT_S = 300
"""For a server that opens its model."""


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


@dataclass(slots=True)
class Tally:
    """A server's tokens, seconds, drafted and accepted tokens, and texts."""

    tokens: int = 0
    seconds: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    texts: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    def __add__(self, other: Tally) -> Tally:
        """Return both together."""
        return Tally(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def ask(self, server: Server, question: Question, tokens: int) -> None:
        """Send a question and count what comes."""
        body: dict[str, Any] = {"model": model_of(server), "temperature": 0, "max_tokens": tokens}
        if question.is_chat:
            path, more = "chat/completions", [{"role": "user", "content": question.turns[0]}]
            body["messages"] = more
        else:
            path, body["prompt"] = "completions", question.turns[0]
        before = counters(server)
        started = time.perf_counter()
        answer = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=600)
        self.seconds += time.perf_counter() - started
        after = counters(server)
        answer.raise_for_status()
        said = answer.json()
        choice = said["choices"][0]
        self.texts.append(choice["message"]["content"] if question.is_chat else choice["text"])
        self.tokens += said["usage"]["completion_tokens"]
        self.drafted += after[0] - before[0]
        self.accepted += after[1] - before[1]


@cache
def model_of(server: Server) -> str:
    """The name under which a server has its model."""
    return str(httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"])


def counters(server: Server) -> tuple[float, float]:
    """The drafted and the accepted tokens of a vLLM server so far; zeros of another one."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    values = [re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.M) for name in (DRAFTED, ACCEPTED)]
    drafted, accepted = (sum(map(float, each)) for each in values)
    return drafted, accepted


def measure(
    servers: Sequence[Server], questions: Sequence[Question], tokens: int
) -> dict[str, Tally]:
    """Send every question to every server, each time beginning with another one."""
    tallies = {server.name: Tally() for server in servers}
    for number, question in enumerate(questions, 1):
        first = number % len(servers)
        for server in (*servers[first:], *servers[:first]):
            with server.awake():
                tallies[server.name].ask(server, question, tokens)
        print(f"\r{number} of {len(questions)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return tallies


def rows(category: str, tallies: dict[str, Tally]) -> Iterator[str]:
    """The table's lines of a category."""
    plain = next(iter(tallies.values()))
    for name, tally in tallies.items():
        same = sum(map(str.__eq__, tally.texts, plain.texts))
        steps = tally.tokens - tally.accepted
        yield (
            f"| {category} | {name} | {tally.tokens / steps:.2f} | {tally.drafted / steps:.2f} "
            f"| {tally.rate:.1f} | {tally.rate / plain.rate:.2f} | {same} of {len(tally.texts)} |"
        )


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a Hugging Face folder that all servers open")
    parser.add_argument(
        "--server", nargs=2, action="append", required=True, metavar=("NAME", "COMMAND"),
        help="the first one is what the others are compared with",
    )  # fmt: skip
    parser.add_argument("--prompts", default="code,chat,summarization", help="as of trtla bench")
    parser.add_argument("--num-prompts", type=int, default=6, help="of each category")
    parser.add_argument("--tokens", type=int, default=64)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Measure and print the table."""
    args = arguments(words)
    try:
        sets = load_sets(args.prompts.split(","), (), args.num_prompts)
    except UsageError as error:
        raise SystemExit(str(error)) from None
    if len({name for name, _ in args.server}) < len(args.server):
        raise SystemExit("two servers have the same name; give each its own")
    with all_opened(args.server, args.model) as servers:
        measure(servers, [WARM_UP], args.tokens)
        machine, titles = cpu(), "tokens a step | drafted a step | tokens/s | over the first"
        print(f"{machine.model}, {machine.cores} cores; {args.tokens} tokens\n")
        print(
            f"| prompts | server | {titles} | texts as the first's |\n|---|---|---|---|---|---|---|"
        )
        each = []
        for one in sets:
            each.append(measure(servers, one.questions, args.tokens))
            print("\n".join(rows(one.category, each[-1])), flush=True)
        if len(each) > 1:
            sums = {name: sum((of[name] for of in each), Tally()) for name in each[0]}
            print("\n".join(rows("all", sums)))


if __name__ == "__main__":
    main(sys.argv[1:])
