"""Loads a server with clients that ask, stream, cancel and vanish, and compares every text.

    python scripts/stress_server.py [--model MODEL] [--clients 64] [--minutes 2]

Starts `trtla serve` on a free port, asks each of its requests alone with plain decoding first, then
lets the clients ask them in any order, with any drafter, shared and private, streamed and not. Each
text must be that of its solo run. Prints counts and the server's memory; exit code 1 for a text
that differs, a failed request, or memory that grows by more than 5 % after the first quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

SHIPPED = Path(__file__).parents[1] / "trtla" / "assets" / "tiny-llama"
TEXTS = (
    "def read_file(path",
    "import os\nimport sys\n",
    "The sea in winter is",
    "class Node:\n    def __init__(self",
    "Write a list of ten animals, one a line:\n",
    "x = [1, 2, 3, 4, 5, 6, 7, 8, ",
)
DRAFTING: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"lookahead": "auto"},
    {"lookahead": [3, 3, 3]},
    {"lookahead": [1, 1, 0]},
    {"drafter": "ngram"},
    {"drafter": "prompt-lookup,lookahead"},
)
GROWTH = 1.05


@dataclass
class Tally:
    """What came of the requests."""

    equal: int = 0
    tokens: int = 0
    cancelled: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, MB)."""


def bodies(seed: int, count: int) -> list[dict[str, Any]]:
    """Requests without drafting: short and long prompts and outputs, greedy and sampled."""
    chance = random.Random(seed)
    made = []
    for index in range(count):
        text = chance.choice(TEXTS) * chance.choice((1, 1, 2, 12))
        length = chance.choice((1, 8, 24, 64, 120))
        heat = chance.choice((0, 0, 0.7, 1.1))
        made.append({"prompt": text, "max_tokens": length, "temperature": heat, "seed": index})
    return made


async def alone(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    plain = {**body, "lookahead": [1, 1, 0], "cache": "private"}
    answer = await http.post("/v1/completions", json=plain)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


async def client(
    http: httpx.AsyncClient, chance: random.Random, asked: list[Any], ends: float, tally: Tally
) -> None:
    while time.monotonic() < ends:
        body, expected = chance.choice(asked)
        more = {**chance.choice(DRAFTING), "cache": chance.choice(("shared", "shared", "private"))}
        try:
            await ask(http, chance, {**body, **more}, expected, tally)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            tally.failed[f"{type(error).__name__}: {error}"[:120]] += 1


async def ask(
    http: httpx.AsyncClient,
    chance: random.Random,
    body: dict[str, Any],
    expected: str,
    tally: Tally,
) -> None:
    """One request; some are given up after a number of chunks, some at once."""
    leave = chance.choice((0, 1, 3, 10)) if chance.random() < 0.2 else None
    if leave is None and chance.random() < 0.4:
        answer = await http.post("/v1/completions", json=body)
        answer.raise_for_status()
        judge(body, str(answer.json()["choices"][0]["text"]), expected, tally)
        return
    text, chunks = "", 0
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            if chunks == leave:
                tally.cancelled += 1
                if not expected.startswith(text):
                    tally.wrong.append(f"{body}: {text!r}")
                return
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                chunks += 1
    judge(body, text, expected, tally)


def judge(body: dict[str, Any], text: str, expected: str, tally: Tally) -> None:
    tally.tokens += body["max_tokens"]
    if text == expected:
        tally.equal += 1
    else:
        tally.wrong.append(f"{body}: {text!r} is not {expected!r}")


async def watch(pid: int, tally: Tally, started: float) -> None:
    while True:
        kib = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]
        tally.memory.append((time.monotonic() - started, int(kib) / 1024))
        await asyncio.sleep(1.0)


async def load(address: str, pid: int, args: argparse.Namespace) -> Tally:
    tally, limits = Tally(), httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits) as http:
        made = bodies(args.seed, args.requests)
        asked = [(body, await alone(http, body)) for body in made]
        started = time.monotonic()
        watching = asyncio.create_task(watch(pid, tally, started))
        ends = started + 60 * args.minutes
        chances = [random.Random(args.seed * 1000 + index) for index in range(args.clients)]
        await asyncio.gather(*(client(http, chance, asked, ends, tally) for chance in chances))
        watching.cancel()
        await asyncio.sleep(1.0)
        gauges = (await http.get("/metrics")).text.splitlines()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            value = next(line.split()[1] for line in gauges if line.startswith(f"trtla_{name} "))
            if float(value):
                tally.failed[f"{name} is {value} when all is done"] += 1
    return tally


def started(model: str) -> tuple[subprocess.Popen[str], str]:
    """The server, and its address."""
    command = [sys.executable, "-m", "trtla", "serve", "-m", model, "--port", "0"]
    log = Path("/dev/null").open("w")  # noqa: SIM115 - the process keeps it
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=log, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "listens on" in line:
            return process, line.split()[3].rstrip(",")
    raise SystemExit(f"the server ended with {process.wait()}")


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(SHIPPED))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--requests", type=int, default=40, help="different ones")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    process, address = started(args.model)
    drained = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    try:
        tally = asyncio.run(load(address, process.pid, args))
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        drained.wait(10)
    return report(tally, args, code)


def report(tally: Tally, args: argparse.Namespace, code: int) -> int:
    quarter = 15 * args.minutes
    settled = [mb for at, mb in tally.memory if at >= quarter] or [0.0]
    grown = settled[-1] / settled[0] if settled[0] else 0.0
    print(f"{tally.equal} texts equal to their solo runs, {tally.cancelled} given up midway")
    print(f"{len(tally.wrong)} wrong, {sum(tally.failed.values())} failed; SIGTERM: exit {code}")
    print(f"memory {settled[0]:.0f} MB after {quarter:.0f} s, {settled[-1]:.0f} MB at the end")
    for line in (*tally.wrong[:3], *map(str, tally.failed.most_common(5))):
        print(f"  {line[:300]}")
    return int(bool(tally.wrong or tally.failed or code or grown > GROWTH))


if __name__ == "__main__":
    sys.exit(main())
