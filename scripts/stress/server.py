"""Clients that request, stream, cancel and vanish; every text is compared with its solo run.

Each request is first decoded alone and plainly. Then the clients send them in any order, with any
drafter, shared and private, streamed and not. Exit code 1 for a text that differs, a failed
request, or memory that grows by more than 32 MB after the first quarter: K/V blocks and trees of
past texts take their memory when they are first used.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from stress.serving import SHIPPED, TEXTS, Body, Server, busy, client, events, serving, whole

DRAFTING: tuple[Body, ...] = (
    {},
    {},
    {"lookahead": "auto"},
    {"lookahead": [3, 3, 3]},
    {"lookahead": [1, 1, 0]},
    {"drafter": "ngram"},
    {"drafter": "prompt-lookup,lookahead"},
)
GROWN_MB = 32


@dataclass
class Tally:
    """What came of the requests."""

    equal: int = 0
    cancelled: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, MB)."""


def bodies(seed: int, count: int) -> list[Body]:
    """Requests without drafting: short and long prompts and outputs, greedy and sampled."""
    chance = random.Random(seed)
    return [
        {
            "prompt": chance.choice(TEXTS) * chance.choice((1, 1, 2, 12)),
            "max_tokens": chance.choice((1, 8, 24, 64, 120)),
            "temperature": chance.choice((0, 0, 0.7, 1.1)),
            "seed": index,
        }
        for index in range(count)
    ]


async def alone(http: httpx.AsyncClient, body: Body) -> str:
    plain = {**body, "lookahead": [1, 1, 0], "cache": "private"}
    return str((await whole(http, plain))["choices"][0]["text"])


async def send_some(
    http: httpx.AsyncClient, chance: random.Random, known: list[Any], ends: float, tally: Tally
) -> None:
    while time.monotonic() < ends:
        body, expected = chance.choice(known)
        more = {**chance.choice(DRAFTING), "cache": chance.choice(("shared", "shared", "private"))}
        try:
            await send(http, chance, {**body, **more}, expected, tally)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            tally.failed[f"{type(error).__name__}: {error}"[:120]] += 1


async def send(
    http: httpx.AsyncClient, chance: random.Random, body: Body, expected: str, tally: Tally
) -> None:
    """One request; some are given up after a number of chunks, some at once."""
    leave = chance.choice((0, 1, 3, 10)) if chance.random() < 0.2 else None
    if leave is None and chance.random() < 0.4:
        text = (await whole(http, body))["choices"][0]["text"]
    else:
        text, chunks = "", 0
        async for document in events(http, body):
            if chunks == leave:
                tally.cancelled += 1
                if not expected.startswith(text):
                    tally.wrong.append(f"{body}: {text!r}")
                return
            text += document["choices"][0]["text"] if document else ""
            chunks += 1
    if text == expected:
        tally.equal += 1
    else:
        tally.wrong.append(f"{body}: {text!r} is not {expected!r}")


async def watch(pid: int, tally: Tally, start: float) -> None:
    while True:
        kib = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]
        tally.memory.append((time.monotonic() - start, int(kib) / 1024))
        await asyncio.sleep(1.0)


async def load(server: Server, args: argparse.Namespace) -> Tally:
    tally = Tally()
    async with client(server.address) as http:
        known = [(body, await alone(http, body)) for body in bodies(args.seed, args.requests)]
        start = time.monotonic()
        watching = asyncio.create_task(watch(server.pid, tally, start))
        ends = start + 60 * args.minutes
        chances = [random.Random(args.seed * 1000 + index) for index in range(args.clients)]
        await asyncio.gather(*(send_some(http, one, known, ends, tally) for one in chances))
        watching.cancel()
        await asyncio.sleep(1.0)
        for line in busy((await http.get("/metrics")).text):
            tally.failed[f"{line} when all is done"] += 1
    return tally


def main(arguments: list[str]) -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(prog="stress server", description=__doc__)
    parser.add_argument("--model", default=str(SHIPPED))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--requests", type=int, default=40, help="different ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("/dev/null"))
    args = parser.parse_args(arguments)
    with serving(args.log, "-m", args.model) as server:
        tally = asyncio.run(load(server, args))
    return report(tally, args, server.code)


def report(tally: Tally, args: argparse.Namespace, code: int | None) -> int:
    quarter = 15 * args.minutes
    settled = [mb for at, mb in tally.memory if at >= quarter] or [0.0]
    print(f"{tally.equal} texts equal to their solo runs, {tally.cancelled} given up midway")
    print(f"{len(tally.wrong)} wrong, {sum(tally.failed.values())} failed; SIGTERM: exit {code}")
    print(f"memory {settled[0]:.0f} MB after {quarter:.0f} s, {settled[-1]:.0f} MB at the end")
    for line in (*tally.wrong[:3], *map(str, tally.failed.most_common(5))):
        print(f"  {line[:300]}")
    return int(bool(tally.wrong or tally.failed or code or settled[-1] - settled[0] > GROWN_MB))
