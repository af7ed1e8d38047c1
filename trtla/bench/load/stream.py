"""A streamed answer: server-sent events out of bytes, and what OpenAI's chunks in them say.

Knows no HTTP and no clock: whoever reads the socket gives the bytes and the time of their receipt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from trtla.console import counted

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_REASON = 300
"""Characters of a server's message that are kept."""


class RequestFailed(Exception):
    """A request has no complete answer; the text is the reason."""


class EventParser:
    """Server-sent events from bytes that may be cut anywhere.

    Lines end with LF, CRLF or CR; comments and fields other than `data` are passed by.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._after_cr = False
        self._begun = False

    def feed(self, received: bytes) -> list[str]:
        """The data of every event that these bytes complete."""
        if not received:
            return []
        if self._after_cr and received.startswith(b"\n"):
            received = received[1:]
            self._after_cr = False
            if not received:
                return []
        self._after_cr = received.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + received)
        return [data for line in lines if (data := self._line(line)) is not None]

    def end(self) -> list[str]:
        """The last event, where the server omits the empty line behind it."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> str | None:
        """Take a line; the event's data if it is the empty line that ends one."""
        if not self._begun:
            self._begun, line = True, line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" ").decode(errors="replace"))
        return None


@dataclass(slots=True)
class Answer:
    """What one request brought, and when; times are seconds of one clock."""

    start: float
    """When it was sent."""
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each of the texts was received."""
    last: float | None = None
    """When the last chunk with a choice was received."""
    closed: float = 0.0
    """When the answer was over, complete or not."""
    usage: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    """trtla's extension."""
    finished: bool = False
    status: int | None = None
    """Of HTTP; None before any."""
    error: str | None = None
    """Why there is no complete answer."""

    @property
    def text(self) -> str:
        """All that it wrote."""
        return "".join(self.texts)

    @property
    def input_tokens(self) -> int | None:
        """Tokens of the prompt; None where the server does not report them."""
        return self._counted("prompt_tokens")

    @property
    def output_tokens(self) -> int:
        """As the server reports them, else the number of chunks with text."""
        reported = self._counted("completion_tokens")
        return len(self.texts) if reported is None else reported

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first text; None where there was no text."""
        return self.times[0] - self.start if self.times else None

    @property
    def e2el_s(self) -> float | None:
        """From sending to the last chunk with a choice."""
        return None if self.last is None else self.last - self.start

    @property
    def tpot_s(self) -> float | None:
        """Time of an output token after the first; None for fewer than two."""
        if self.last is None or not self.times or self.output_tokens < 2:
            return None
        return (self.last - self.times[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between the receipts of texts that follow each other."""
        return [after - before for before, after in pairwise(self.times)]

    def _counted(self, key: str) -> int | None:
        value = (self.usage or {}).get(key)
        return value if isinstance(value, int) else None

    def take(self, data: str, at: float) -> None:
        """Read the data of an event that was received at this time.

        Raises:
            RequestFailed: it is an error, or no chunk of an answer.
        """
        if data.strip() == "[DONE]":
            self.finished = True
            return
        chunk = _object(data)
        if chunk.get("error"):
            raise RequestFailed(reason_of(chunk))
        for key in ("usage", "metrics"):
            if isinstance(chunk.get(key), Mapping):
                setattr(self, key, chunk[key])
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, Sequence) else ():
            self._take_choice(choice, at)

    def _take_choice(self, choice: Any, at: float) -> None:
        if not isinstance(choice, Mapping):
            raise RequestFailed(f"a choice of the answer is {choice!r:.60}")
        self.last = at
        self.finished = self.finished or choice.get("finish_reason") is not None
        if text := _text(choice):
            self.texts.append(text)
            self.times.append(at)

    def end(self, content_type: str) -> None:
        """The stream is over.

        Raises:
            RequestFailed: it ended before the answer did.
        """
        if self.finished:
            return
        if self.last is None:
            raise RequestFailed(f"the answer is {content_type or 'empty'}, and no stream of chunks")
        raise RequestFailed(f"the stream ended early, after {counted(len(self.texts), 'chunk')}")


def _object(data: str) -> Mapping[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, Mapping):
        raise RequestFailed(f"a chunk of the answer is not a JSON object: {data!r:.60}")
    return chunk


def _text(choice: Mapping[str, Any]) -> str:
    """A chunk's text: of a completion, or of a chat with what it thinks before it answers."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return str(choice.get("text") or "")
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    return str(thought or "") + str(delta.get("content") or "")


def reason_of(body: Any) -> str:
    """A server's message in one line, from what it has for a body: OpenAI's form or another."""
    while isinstance(body, Mapping):
        named = (body.get(key) for key in ("error", "message", "detail"))
        body = next((value for value in named if value), json.dumps(body))
    return " ".join(str(body).split())[:_MOST_REASON]
