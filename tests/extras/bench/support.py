"""A server that streams as OpenAI's does, with answers that are known beforehand.

It writes raw HTTP, so that chunks are cut, answers broken off and fields refused as a test wants.
What a prompt holds says what goes wrong with its answer: `busy`, `broken`, `cut`, `fails`, `hangs`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]


@dataclass
class LoadServer:
    """How it answers, and what it was asked."""

    models: list[Body] = field(default_factory=lambda: [{"id": "toy", "owned_by": "test"}])
    refuses: tuple[str, ...] = ()
    """Fields of requests that are answered by 400."""
    usage: bool = True
    key: str | None = None
    line_end: str = "\n"
    piece: int = 10**6
    """Bytes that are written at a time."""
    closes: bool = False
    """Close a connection without an answer to its second request for one."""
    together: int = 0
    """Answers begin when so many requests have run at the same time."""
    drifts: bool = False
    """Whether a prompt has another text when it is asked again."""
    bodies: list[Body] = field(default_factory=list)
    """The requests, warm-up first."""
    most: int = 0
    """Requests that ran at the same time, the warm-up aside."""
    port: int = 0
    _running: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def text(self, body: Body, asked: int = 1) -> list[str]:
        """The tokens of an answer."""
        times = asked if self.drifts else 1
        return [f"{i}é{body['seed'] * times} " for i in range(body["max_tokens"])]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            used = False
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if self.closes and used:
                    break
                used = bool(body)
                await self._answer(writer, lines[0].split()[1], headers, body)
        writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        if self.key and headers.get("authorization") != f"bearer {self.key}":
            return self._refuse(writer, "401 Unauthorized", "wrong key")
        if path == "/v1/models":
            return self._json(writer, "200 OK", {"object": "list", "data": self.models})
        asked = json.loads(body)
        self.bodies.append(asked)
        for name in self.refuses:
            if name in asked:
                return self._refuse(writer, "400 Bad Request", f"no {name} here")
        prompt = str(asked.get("messages") or asked.get("prompt"))
        if "busy" in prompt:
            return self._refuse(writer, "429 Too Many Requests", "queue full")
        if "broken" in prompt:
            return self._send(writer, "500 Internal Server Error", "text/plain", b"out of order")
        self._running += 1
        try:
            return await self._stream(writer, asked, prompt, path.endswith("chat/completions"))
        finally:
            self._running -= 1

    def _refuse(self, writer: asyncio.StreamWriter, status: str, message: str) -> None:
        self._json(writer, status, {"error": {"message": message, "type": "x", "param": None}})

    def _json(self, writer: asyncio.StreamWriter, status: str, value: Body) -> None:
        self._send(writer, status, "application/json", json.dumps(value).encode())

    def _send(self, writer: asyncio.StreamWriter, status: str, kind: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async def _stream(
        self, writer: asyncio.StreamWriter, asked: Body, prompt: str, chat: bool
    ) -> None:
        if len(self.bodies) > 1:
            self.most = max(self.most, self._running)
            while self.most < self.together:
                await asyncio.sleep(0.001)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        events = list(self._events(asked, prompt, chat))
        if "cut" in prompt:
            await self._write(writer, "".join(events[:4]))
            writer.transport.abort()
            return
        if "hangs" in prompt:
            await asyncio.sleep(600)
        await self._write(writer, "".join(events))
        writer.write(b"0\r\n\r\n")

    def _events(self, asked: Body, prompt: str, chat: bool) -> Iterator[str]:
        """The answer's events, with comments between them."""
        again = [body.get("messages") or body.get("prompt") for body in self.bodies[1:]]
        tokens = self.text(asked, again.count(asked.get("messages") or asked.get("prompt")))
        yield f": keep-alive{self.line_end}{self.line_end}"
        if chat:
            yield self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        for number, token in enumerate(tokens):
            if "fails" in prompt and number == 2:
                yield self._data({"error": {"message": "the engine died", "code": 500}})
                return
            own = {"delta": {"content": token}} if chat else {"text": token}
            yield self._event([{"index": 0, **own, "finish_reason": None}])
        last = {"delta": {}} if chat else {"text": ""}
        drafts = {"steps": 4, "drafted": 8, "accepted": 2}
        more = {"metrics": drafts} if asked.get("metrics") else {}
        yield self._event([{"index": 0, **last, "finish_reason": "length"}], **more)
        if self.usage and asked.get("stream_options", {}).get("include_usage"):
            yield self._event([], usage={"prompt_tokens": 7, "completion_tokens": len(tokens)})
        yield f"data: [DONE]{self.line_end}{self.line_end}"

    def _event(self, choices: list[Body], **more: Any) -> str:
        return self._data({"object": "chunk", "choices": choices, "usage": None, **more})

    def _data(self, chunk: Body) -> str:
        """A chunk, on two lines of data."""
        text = json.dumps(chunk, ensure_ascii=False)
        lines = text.replace(', "', f',{self.line_end}data: "', 1)
        return f"id: 1{self.line_end}data: {lines}{self.line_end}{self.line_end}"

    async def _write(self, writer: asyncio.StreamWriter, text: str) -> None:
        body = text.encode()
        for at in range(0, len(body), self.piece):
            part = body[at : at + self.piece]
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()


@contextmanager
def running(server: LoadServer) -> Iterator[LoadServer]:
    """The server on a free port, in a thread of its own."""
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def work() -> None:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            server.port = listening.sockets[0].getsockname()[1]
            ready.set()
            await stop.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
    thread.start()
    assert ready.wait(120)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
