"""Replicas killed under load: every text is compared with that of one process.

Sends all requests to `trtla serve`, then the same ones to `trtla serve --ray --replicas 2` while a
replica is killed every few seconds, each in its turn. A failed request is lost; a stream whose
pieces do not add up to as many tokens as its end reports was doubled or cut. Exit code 1 for
anything lost, doubled or different.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from stress.serving import TEXTS, Body, client, events, serving, whole

REPLICAS = ("--ray", "--replicas", "2")


@dataclass
class Tally:
    """What came of the requests."""

    equal: int = 0
    kills: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    doubled: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.different)


def bodies(count: int, longest: int) -> list[Body]:
    """Greedy and sampled, streamed and not, short and longer."""
    chance, made = random.Random(1), []
    for index in range(count):
        body: Body = {
            "prompt": chance.choice(TEXTS),
            "max_tokens": chance.randint(2, longest),
            "temperature": chance.choice((0, 0.8)),
            "seed": index,
        }
        if chance.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}, "pieces": True}
        made.append(body)
    return made


async def text_of(http: httpx.AsyncClient, body: Body, tally: Tally) -> str:
    if not body.get("stream"):
        answer = await whole(http, body)
        return str(answer["choices"][0]["text"])
    text, tokens, usage, ends = "", 0, 0, 0
    async for document in events(http, body):
        if document is None:
            ends += 1
            continue
        for choice in document["choices"]:
            text, tokens = text + choice["text"], choice.get("tokens", tokens)
        usage = (document.get("usage") or {}).get("completion_tokens", usage)
    if ends != 1 or tokens != usage:
        tally.doubled.append(f"{ends} ends, {tokens} tokens for {usage}: {body}")
    return text


async def send_all(
    address: str, requests: list[Body], clients: int, tally: Tally, known: list[str] | None
) -> list[str]:
    """All texts, in order; compared with those that are known."""
    texts, left = [""] * len(requests), iter(range(len(requests)))
    async with client(address) as http:

        async def work() -> None:
            for index in left:
                try:
                    texts[index] = await text_of(http, requests[index], tally)
                except (httpx.HTTPError, ValueError, KeyError) as error:
                    tally.lost[f"{type(error).__name__}: {error}"[:150]] += 1
                    continue
                if known is None or texts[index] == known[index]:
                    tally.equal += 1
                else:
                    tally.different.append(f"{requests[index]}: {texts[index]!r}, {known[index]!r}")

        await asyncio.gather(*(work() for _ in range(clients)))
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
        if running := replicas_of(server):
            os.kill(running[0], signal.SIGKILL)
            tally.kills += 1


async def with_kills(options: argparse.Namespace, requests: list[Body]) -> bool:
    alone, tally = Tally(), Tally()
    with serving(options.log, "-m", options.model) as server:
        known = await send_all(server.address, requests, options.clients, alone, None)
    assert alone.is_clean, alone
    with serving(options.log, "-m", options.model, *REPLICAS) as server:
        start = time.monotonic()
        killing = asyncio.create_task(kill_some(server.pid, options.kill_every, tally))
        await send_all(server.address, requests, options.clients, tally, known)
        killing.cancel()
        seconds = time.monotonic() - start
        metrics = httpx.get(f"{server.address}/metrics").text
    again = [line for line in metrics.splitlines() if line.startswith("trtla_replica")]
    print(
        f"{len(requests)} requests in {seconds:.0f} s, {tally.kills} replicas killed: "
        f"{tally.equal} equal, {sum(tally.lost.values())} lost, {len(tally.doubled)} doubled, "
        f"{len(tally.different)} different; {'; '.join(again)}"
    )
    for line in (*tally.lost.items(), *tally.doubled[:5], *tally.different[:5]):
        print(line)
    return tally.is_clean and not server.code


def main(arguments: list[str]) -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(prog="stress replicas", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--longest", type=int, default=48)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kill-every", type=float, default=10.0)
    parser.add_argument("--log", type=Path, default=Path("stress_replicas.log"))
    options = parser.parse_args(arguments)
    requests = bodies(options.requests, options.longest)
    return int(not asyncio.run(with_kills(options, requests)))
