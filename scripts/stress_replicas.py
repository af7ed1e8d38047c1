"""Kills replicas under load, and compares every text; then compares the speed with one process.

    python scripts/stress_replicas.py --model MODEL [--requests 1000] [--kill-every 10]
    python scripts/stress_replicas.py --model MODEL --speed [--rounds 3]

The first starts `trtla serve`, asks it all requests, ends it, and asks the same of
`trtla serve --ray --replicas 2` while every few seconds a replica, each in its turn, is killed with
SIGKILL. A request that fails is lost; a text that is not that of the one process is different; a
stream whose pieces do not add up to as many tokens as its end says was doubled or cut. The second
asks both kinds in turns without kills. Exit code 1 for anything lost, doubled or different.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

Body = dict[str, Any]
TEXTS = (
    "The sea in winter is",
    "Write a list of ten animals, one a line:\n",
    "def read_file(path",
    "Once upon a time there was a clever fox who lived in a forest. " * 4,
    "The capital of France is Paris. The capital of Italy is Rome. " * 6,
    "Dear Sir or Madam,\n\nI am writing to you because",
)


@dataclass
class Tally:
    """What came of the requests."""

    equal: int = 0
    tokens: int = 0
    kills: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    doubled: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.different)


def bodies(count: int, longest: int, own: bool = False) -> list[Body]:
    """Greedy and sampled, streamed and not, short and longer; `own`: no two prompts alike, since
    one process drafts from all texts, and a replica from its own."""
    chance, made = random.Random(1), []
    for index in range(count):
        body: Body = {
            "prompt": (f"Fact {index}. " if own else "") + chance.choice(TEXTS),
            "max_tokens": chance.randint(2, longest),
            "temperature": chance.choice((0, 0.8)),
            "seed": index,
            "stream": chance.random() < 0.5,
        }
        if body["stream"]:
            body |= {"stream_options": {"include_usage": True}, "pieces": True}
        made.append(body)
    return made


@asynccontextmanager
async def serving(arguments: list[str], log: Path) -> AsyncIterator[tuple[str, int]]:
    """A server's address and process, while it runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "trtla", "serve", "--port", str(port), *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stderr=output)
    address = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient() as http:
            while True:
                assert process.poll() is None, f"the server ended; see {log}"
                try:
                    if (await http.get(f"{address}/health")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.2)
        yield address, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(90)
        assert code == 0, f"exit code {code}"


async def ask(http: httpx.AsyncClient, body: Body, tally: Tally) -> str:
    """The text of a request."""
    if not body["stream"]:
        answer = await http.post("/v1/completions", json=body)
        answer.raise_for_status()
        data = answer.json()
        tally.tokens += data["usage"]["completion_tokens"]
        return str(data["choices"][0]["text"])
    text, tokens, usage, done = "", 0, 0, 0
    async with http.stream("POST", "/v1/completions", json=body) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            if line == "data: [DONE]":
                done += 1
            elif line.startswith("data: "):
                data = json.loads(line[6:])
                if "error" in data:
                    raise ValueError(data["error"]["message"])
                for choice in data["choices"]:
                    text, tokens = text + choice["text"], choice.get("tokens", tokens)
                usage = (data.get("usage") or {}).get("completion_tokens", usage)
    if done != 1 or tokens != usage:
        tally.doubled.append(f"{done} ends, {tokens} tokens for {usage}: {body}")
    tally.tokens += usage
    return text


async def ask_all(
    address: str, asked: list[Body], clients: int, tally: Tally, known: list[str] | None
) -> list[str]:
    """All texts, in order; compared with those that are known."""
    texts, left = [""] * len(asked), iter(range(len(asked)))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as http:

        async def client() -> None:
            for index in left:
                try:
                    texts[index] = await ask(http, asked[index], tally)
                except (httpx.HTTPError, ValueError, KeyError) as error:
                    tally.lost[f"{type(error).__name__}: {error}"[:150]] += 1
                    continue
                if known is None or texts[index] == known[index]:
                    tally.equal += 1
                else:
                    tally.different.append(f"{asked[index]}: {texts[index]!r}, {known[index]!r}")

        await asyncio.gather(*(client() for _ in range(clients)))
    return texts


def replicas_of(server: int) -> list[int]:
    """The processes of its replicas, the oldest first."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name = (folder / "cmdline").read_text()
            except OSError:
                continue
            if name.startswith(f"ray::ServeReplica:trtla-{server}-"):
                found.append((folder.stat().st_mtime, int(folder.name)))
    return [process for _, process in sorted(found)]


async def kill_some(server: int, every_s: float, tally: Tally) -> None:
    while True:
        await asyncio.sleep(every_s)
        running = replicas_of(server)
        if running:
            os.kill(running[0], signal.SIGKILL)
            tally.kills += 1


async def with_kills(options: argparse.Namespace, asked: list[Body]) -> bool:
    log, alone, tally = Path(options.log), Tally(), Tally()
    async with serving(["-m", options.model], log) as (address, _):
        known = await ask_all(address, asked, options.clients, alone, None)
    assert alone.is_clean, alone
    spread = ["-m", options.model, "--ray", "--replicas", "2"]
    async with serving(spread, log) as (address, server):
        started = time.monotonic()
        killing = asyncio.create_task(kill_some(server, options.kill_every, tally))
        await ask_all(address, asked, options.clients, tally, known)
        killing.cancel()
        seconds = time.monotonic() - started
        metrics = httpx.get(f"{address}/metrics").text
    again = [line for line in metrics.splitlines() if line.startswith("trtla_replica")]
    print(
        f"{len(asked)} requests in {seconds:.0f} s, {tally.kills} replicas killed: "
        f"{tally.equal} equal, {sum(tally.lost.values())} lost, {len(tally.doubled)} doubled, "
        f"{len(tally.different)} different; {'; '.join(again)}"
    )
    for what in (*tally.lost.items(), *tally.doubled[:5], *tally.different[:5]):
        print(what)
    return tally.is_clean


async def speeds(options: argparse.Namespace, asked: list[Body]) -> bool:
    """Tokens/s of both kinds, in turns; the median of the pairs' ratios."""
    kinds = {"one process": ["--threads", "2"], "2 replicas": ["--ray", "--replicas", "2"]}
    log, ratios, known = Path(options.log), [], None
    for number in range(options.rounds):
        found: dict[str, float] = {}
        for kind in sorted(kinds, reverse=bool(number % 2)):
            tally = Tally()
            async with serving(["-m", options.model, *kinds[kind]], log) as (address, _):
                await ask_all(address, asked[:40], options.clients, Tally(), None)
                started = time.monotonic()
                texts = await ask_all(address, asked, options.clients, tally, known)
                found[kind] = tally.tokens / (time.monotonic() - started)
            known = known or texts
            if not tally.is_clean:
                print(tally)
                return False
        ratios.append(found["2 replicas"] / found["one process"])
        print({kind: round(speed, 1) for kind, speed in found.items()}, round(ratios[-1], 3))
    print(f"2 replicas / one process: {median(ratios):.3f}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--longest", type=int, default=48)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kill-every", type=float, default=10.0)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--log", default="stress_replicas.log")
    options = parser.parse_args()
    work = speeds if options.speed else with_kills
    asked = bodies(options.requests, options.longest, options.speed)
    return int(not asyncio.run(work(options, asked)))


if __name__ == "__main__":
    sys.exit(main())
