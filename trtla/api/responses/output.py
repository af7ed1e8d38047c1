"""The output of a response as it grows: its items, and the events about them in OpenAI's order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

Json = dict[str, Any]
Kind = Literal["message", "reasoning"]
_PARTS: dict[Kind, str] = {"message": "output_text", "reasoning": "reasoning_text"}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class Output:
    """Items of an answer; those that have ended are whole.

    Args:
        key: what their ids are made of.
        namespaces: by the names of functions, for those that have one.
    """

    def __init__(self, key: str, namespaces: Mapping[str, str]) -> None:
        self._key, self._namespaces = key, namespaces
        self.items: list[Json] = []
        self._kind: Kind | None = None
        """The item that is open, if any."""
        self._texts: list[str] = []
        """The pieces of its text."""
        self._logprobs: list[Json] = []
        """The log probabilities of an open message."""

    @property
    def is_message(self) -> bool:
        """True while a message is open."""
        return self._kind == "message"

    def grow(self, kind: Kind, text: str, logprobs: Sequence[Json] = ()) -> Iterator[Json]:
        """Add to the text of a message or of thoughts, which begin where another item was open."""
        if self._kind != kind:
            yield from self.close()
            yield from self._begin(kind)
        self._texts.append(text)
        self._logprobs += logprobs
        if text:
            more = {"logprobs": list(logprobs)} if kind == "message" else {}
            yield {**self._at(f"{_PARTS[kind]}.delta"), "delta": text, **more}

    def _begin(self, kind: Kind) -> Iterator[Json]:
        self._kind, self._texts, self._logprobs = kind, [], []
        role: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
        item = {"id": self._id(kind), "type": kind, "status": "in_progress", **role, "content": []}
        yield self._about("output_item.added", self._add(item))
        yield {**self._at("content_part.added"), "part": self._part(kind)}

    def close(self, status: str = "completed") -> Iterator[Json]:
        """End the item that is open, if any."""
        if (kind := self._kind) is None:
            return
        part, item = self._part(kind), self.items[-1]
        more = {"logprobs": part["logprobs"]} if kind == "message" else {}
        yield {**self._at(f"{_PARTS[kind]}.done"), "text": part["text"], **more}
        yield {**self._at("content_part.done"), "part": part}
        item |= {"status": status, "content": [part]}
        self._kind = None
        yield self._about("output_item.done", item)

    def call(self, call: Json) -> Iterator[Json]:
        """Add a call as a chat has it."""
        yield from self.close()
        function = call["function"]
        named = {"call_id": call["id"], "name": function["name"]}
        if namespace := self._namespaces.get(function["name"]):
            named["namespace"] = namespace
        begun = {"type": "function_call", **named, "arguments": "", "status": "in_progress"}
        item = self._add({"id": self._id("function_call"), **begun})
        yield self._about("output_item.added", item)
        at = {"item_id": item["id"], "output_index": len(self.items) - 1}
        kind, arguments = "response.function_call_arguments", function["arguments"]
        yield {"type": f"{kind}.delta", **at, "delta": arguments}
        item |= {"arguments": arguments, "status": "completed"}
        yield {"type": f"{kind}.done", **at, "name": item["name"], "arguments": arguments}
        yield self._about("output_item.done", item)

    def _id(self, kind: str) -> str:
        return f"{_PREFIXES[kind]}_{self._key}{len(self.items)}"

    def _add(self, item: Json) -> Json:
        self.items.append(item)
        return item

    def _about(self, name: str, item: Json) -> Json:
        """Return an event with an item as it is now."""
        return {"type": f"response.{name}", "output_index": len(self.items) - 1, "item": {**item}}

    def _at(self, name: str) -> Json:
        """Return the beginning of an event about the text of the last item."""
        index = len(self.items) - 1
        at = {"item_id": self.items[index]["id"], "output_index": index, "content_index": 0}
        return {"type": f"response.{name}", **at}

    def _part(self, kind: Kind) -> Json:
        """Return the text so far as a part of a content."""
        more = {"annotations": [], "logprobs": self._logprobs} if kind == "message" else {}
        return {"type": _PARTS[kind], "text": "".join(self._texts), **more}
