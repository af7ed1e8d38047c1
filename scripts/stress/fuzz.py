"""Thousands of malformed and hostile requests; none may be answered with 500.

Mutates good bodies: wrong types, NaN, huge numbers, unknown fields, bad UTF-8, nesting, cut JSON;
breaks HTTP itself: junk, half-closed sockets, lengths that lie, chunks that stop, huge headers,
slow readers that go away. Afterwards the server must be healthy, empty and answer as before. For
the fields' own rules run `schemathesis run ADDRESS/openapi.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
from stress.serving import SHIPPED, busy, serving

GOOD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "def f(", "max_tokens": 2, "temperature": 0}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1, "n": 2, "seed": 1, "stop": ["a"]}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "prediction": {"type": "content", "content": "x"},
        },
    ),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 2, "text": {"verbosity": "medium"}}),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "b"},
                {"role": "user", "content": "hi"},
            ],
            "instructions": "Be brief.",
            "max_output_tokens": 2,
            "stream": True,
            "include": ["message.output_text.logprobs"],
            "metadata": {"a": "b"},
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "tool_choice": "none",
        },
    ),
)
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**40, -(10**40), 0.5, -0.0, 1e308,
    "", "a", "\x00", "\ud800", "é" * 500, "a" * 70_000,
    [], {}, [[]], [None], ["a", 1], [-1], [2**70], [[1], ["a"]], {"a": 1}, {"type": "text"},
    [{"role": "user"}], [{"role": "root", "content": "x"}],
    "auto", [7, 7, 7], [1, 1, 0], [0, 0, 0], [1000, 1000, 1000],
    "draft:/etc/passwd", "none", "../../etc", "%s%n", float("nan"), float("inf"),
)  # fmt: skip
FIELDS = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "seed", "stop", "n", "stream", "stream_options", "prediction", "lookahead",
    "drafter", "cache", "metrics", "pieces", "logprobs", "top_logprobs", "tools", "logit_bias",
    "echo", "user", "__proto__", "constructor", "input", "instructions", "max_output_tokens",
    "text", "reasoning", "include", "metadata", "store", "tool_choice", "type", "role", "content",
    "name", "call_id", "output", "summary", "arguments",
)  # fmt: skip
PATHS = (
    "/", "/health", "/metrics", "/version", "/v1/models", "/v1/models/x", "/v1/models/%00",
    "/page/../x", "/page/%2e%2e/%2e%2e/app.py", "/openapi.json", "//", "/v1//completions",
    "/v1/completions/", "/%ff",
)  # fmt: skip

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def mutated(chance: random.Random) -> tuple[str, bytes]:
    """A path, and a body that is nearly right."""
    path, body = chance.choice(GOOD)
    body = json.loads(json.dumps(body))
    for _ in range(chance.choice((1, 1, 2, 4))):
        changed = chance.choice(objects_in(body))
        names = FIELDS if not changed or chance.random() < 0.5 else [*changed]
        changed[chance.choice(names)] = deepcopy(chance.choice(NASTY))
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    if body.get(most) != 1 and not _is_small(body.get(most)):
        body[most] = chance.choice((1, 2, "a", -1))
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    kind = chance.randrange(10)
    if kind == 0:
        data = data[: chance.randrange(len(data) + 1)]
    elif kind == 1:
        place = chance.randrange(len(data))
        data = data[:place] + bytes([chance.randrange(256)]) + data[place:]
    elif kind == 2:
        deep = chance.choice((10, 1000, 50_000))
        data = b'{"prompt": ' + b"[" * deep + b"]" * deep + b"}"
    return path, data


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a body, at every depth."""
    if isinstance(value, dict):
        return [value, *objects_in(list(value.values()))]
    inner = value if isinstance(value, list) else ()
    return [one for part in inner for one in objects_in(part)]


def _is_small(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 4


async def ask(http: httpx.AsyncClient, chance: random.Random, seen: Counter[str]) -> None:
    """One request by a proper client."""
    if chance.random() < 0.1:
        method = chance.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "X"))
        answer = await http.request(method, chance.choice(PATHS))
    else:
        path, data = mutated(chance)
        kind = "application/json" if chance.random() < 0.97 else chance.choice(("", "text/html"))
        headers = {"Content-Type": kind}
        if chance.random() < 0.05:
            headers["Origin"] = chance.choice(("null", "https://a.example", "http://[::1", "\t"))
        if chance.random() < 0.02:
            headers["Host"] = chance.choice(("", "a.example", "[", "127.0.0.1:99999", "@"))
        answer = await http.post(path, content=data, headers=headers)
    seen[str(answer.status_code)] += 1
    if answer.status_code == 500:
        print(f"500 for {answer.request.content[:300]!r}: {answer.text[:300]}")


async def break_http(host: str, port: int, chance: random.Random, seen: Counter[str]) -> None:
    """One connection by an improper one."""
    body = b'{"prompt": "def f(", "max_tokens": 400, "temperature": 0, "stream": true}'
    sent = chance.choice(
        (
            b"",
            chance.randbytes(chance.randrange(2000)),
            b"\x16\x03\x01\x02\x00\x01",
            HEAD,
            HEAD + b"Content-Length: -1\r\n\r\n",
            HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
            HEAD + b"Content-Length: 500\r\n\r\n" + body,
            HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + body,
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
            HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            HEAD + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
            HEAD * 20,
            HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body,
            HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 30,
        )
    )
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(sent)
        if chance.random() < 0.5:
            writer.write_eof()
        said = await asyncio.wait_for(reader.read(chance.choice((1, 10, 4000))), 0.3)
        seen[f"raw {said[9:12].decode('latin-1') if said[:5] == b'HTTP/' else 'closed'}"] += 1
        if b" 500 " in said.partition(b"\r\n")[0]:
            print(f"500 for {sent[:300]!r}")
            seen["500"] += 1
    except (asyncio.TimeoutError, OSError):
        seen["raw silent"] += 1
    finally:
        writer.transport.abort() if chance.random() < 0.5 else writer.close()


async def fuzz(address: str, args: argparse.Namespace) -> tuple[Counter[str], list[str]]:
    """All of it, 16 at a time; what was answered, and what is wrong afterwards."""
    seen, chance = Counter[str](), random.Random(args.seed)
    host, port = address.removeprefix("http://").split(":")
    async with httpx.AsyncClient(base_url=address, timeout=120) as http:
        path, body = GOOD[0]
        before = (await http.post(path, json=body)).json()["choices"]
        places = asyncio.Semaphore(16)

        async def one() -> None:
            async with places:
                try:
                    if chance.random() < 0.15:
                        await break_http(host, int(port), chance, seen)
                    else:
                        await ask(http, chance, seen)
                except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
                    seen[f"client: {type(error).__name__}"] += 1

        await asyncio.gather(*(one() for _ in range(args.count)))
        await asyncio.sleep(1.0)
        wrong = []
        if (await http.get("/health")).status_code != 200:
            wrong.append("not healthy")
        if (await http.post(path, json=body)).json()["choices"] != before:
            wrong.append("another answer than before")
        wrong += busy((await http.get("/metrics")).text)
    return seen, wrong


def main(arguments: list[str]) -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(prog="stress fuzz", description=__doc__)
    parser.add_argument("--model", default=str(SHIPPED))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("/dev/null"))
    args = parser.parse_args(arguments)
    with serving(args.log, "-m", args.model) as server:
        seen, wrong = asyncio.run(fuzz(server.address, args))
    for status, count in sorted(seen.items()):
        print(f"{count:6} {status}")
    for line in wrong:
        print(f"wrong afterwards: {line}")
    print(f"SIGTERM: exit {server.code}")
    return int(bool(wrong or server.code or seen["500"]))
