"""The response to one request, whole or as events; its generation is a chat's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Literal

from trtla.api.answers import Json, Labels, Writer, dumps, is_cut
from trtla.api.errors import ApiError
from trtla.api.generation import Generation, answers_to
from trtla.api.harmony import SIGNS, HarmonySplitter
from trtla.api.protocol import FINISH_REASONS, ChatBody
from trtla.api.responses.body import ResponseBody
from trtla.api.responses.errors import renamed
from trtla.api.responses.logged import TextByToken
from trtla.api.responses.output import Output
from trtla.llm.answer import Answer, Chunk, Completion
from trtla.llm.prompt import RequestMaker
from trtla.runtime.request import TokenLogProb

Status = Literal["in_progress", "completed", "incomplete", "failed"]


def response_answers(
    chat: ChatBody,
    llm: RequestMaker,
    timeout_s: float | None = None,
    space: int = 0,
) -> list[Answer]:
    """Create the answer of the chat that a body asks for; arguments as in `answers_to`."""
    with renamed():
        return answers_to(chat, llm, timeout_s, space)


class ResponseWriter(Writer):
    """The response to one request.

    Args:
        asked: its body; the others as in `Writer`, with the chat that it asks for.
    """

    def __init__(
        self,
        asked: ResponseBody,
        body: ChatBody,
        labels: Labels,
        generation: Generation,
        llm: RequestMaker,
    ) -> None:
        super().__init__(body, labels, generation, llm)
        self.id = f"resp_{labels.key}"
        spaces = {tool.name: space for space, tool in asked.functions if space is not None}
        self._output, self._numbers = Output(labels.key, spaces), count()
        self._logged: list[Json] = []
        """Log probabilities that no text has brought yet."""
        harmony = isinstance(self._splitters.get(0), HarmonySplitter)
        self._by_token = TextByToken(SIGNS if harmony else {})
        usual = 0.0 if llm.limits.greedy_only else 1.0
        temperature = usual if body.temperature is None else body.temperature
        self._asked = {**_echo(asked), "temperature": temperature}

    def begin(self) -> bytes:
        """Return the events in front of the output."""
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return self._events({"type": kind, "response": response} for kind in kinds)

    def add(self, chunk: Chunk) -> bytes | None:
        """Return a chunk as events of a stream; None if it has no content yet."""
        if not self._body.stream:
            return None
        return self._events(self._grow(chunk.text, chunk.logprobs, chunk.completion)) or None

    def end(self) -> Iterator[bytes]:
        """Yield the event after the output."""
        response = self._ended()
        yield self._events([{"type": f"response.{response['status']}", "response": response}])

    def failed(self, error: ApiError) -> bytes:
        """Return the last event of a response that ends with an error."""
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": error.message}
        return self._events([{"type": "response.failed", "response": response}])

    def whole(self) -> Json:
        """Return the whole response, after its text has ended."""
        (done,) = self._done
        for _ in self._grow(done.text, done.logprobs, done):
            pass
        return self._ended()

    def _events(self, events: Iterable[Json]) -> bytes:
        return b"".join(map(self._event, events))

    def _event(self, data: Json) -> bytes:
        numbered = {"type": data["type"], "sequence_number": next(self._numbers), **data}
        return f"event: {data['type']}\ndata: ".encode() + dumps(numbered) + b"\n\n"

    def _grow(
        self, text: str, tokens: Iterable[TokenLogProb], done: Completion | None
    ) -> Iterator[Json]:
        """Add a text to the output; yields the events about it.

        It is split behind calls, so that items are in the order of the text.
        """
        output, splitter = self._output, self._splitters.get(0)
        pieces = self._pieces(text, tokens, is_last=done is not None)
        for index, (piece, logged) in enumerate(pieces):
            self._logged += logged
            parts: Json = {"content": piece}
            if splitter is not None:
                last = done is not None and index == len(pieces) - 1
                parts = splitter.push(piece, last=last, cut=is_cut(done))
            if thoughts := parts.get("reasoning_content"):
                yield from output.grow("reasoning", thoughts)
            if content := parts.get("content"):
                yield from self._say(content)
            for call in parts.get("tool_calls", ()):
                yield from output.call(call)
        if done is not None:
            if not output.items or output.is_message:
                yield from self._say("")  # an empty text, or the last log probabilities
            yield from output.close(_status(done))

    def _pieces(
        self, text: str, tokens: Iterable[TokenLogProb], *, is_last: bool
    ) -> list[tuple[str, list[Json]]]:
        """Return the parts of a text in which no item ends, with the log probabilities of each."""
        logged: list[Json] = []
        if self._body.tops is not None:
            logged = self._chat_logprobs(tuple(tokens))["content"]
        splitter, own = self._splitters.get(0), [(text, logged)]
        if splitter is None:
            return own
        if self._body.tops is not None:
            own = self._by_token.split(text, logged, is_last=is_last)
        return [
            (part, [] if index else some)
            for piece, some in own
            for index, part in enumerate(splitter.behind_calls(piece))
        ]

    def _say(self, text: str) -> Iterator[Json]:
        logged, self._logged = self._logged, []
        return self._output.grow("message", text, logged)

    def _ended(self) -> Json:
        """Return the response, after its text has ended."""
        (done,) = self._done
        response = self._response(_status(done))
        if response["status"] == "completed":
            now, labels = int(time.time()), self._labels
            response["completed_at"] = labels.created if labels.repeatable else now
        else:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response |= {"output": self._output.items, "usage": self._usage()}
        return response | ({"metrics": self._metrics()} if self._body.metrics else {})

    def _response(self, status: Status) -> Json:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._labels.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._labels.model,
            "output": [],
            **self._asked,
            "usage": None,
        }

    def _usage(self) -> Json:
        (done,), (read, written) = self._done, self.tokens
        reused = {"cached_tokens": done.stats.reused_tokens, "cache_write_tokens": 0}
        details = {} if self._labels.repeatable else {"input_tokens_details": reused}
        return {
            "input_tokens": read,
            **details,
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": self._thoughts(done)},
            "total_tokens": read + written,
        }

    def _thoughts(self, done: Completion) -> int:
        """Return the number of tokens up to the end of the thoughts."""
        if not any(item["type"] == "reasoning" for item in self._output.items):
            return 0
        return self._splitters[0].count_thoughts(list(map(self._spell, done.output_ids)))


def _status(done: Completion) -> Status:
    return "incomplete" if FINISH_REASONS[done.finish_reason] == "length" else "completed"


def _echo(asked: ResponseBody) -> Json:
    """Return the fields of a response that repeat the request's, or what took their place."""
    choice, reasoning = asked.tool_choice or "auto", asked.reasoning
    form = asked.text.format if asked.text is not None else None
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "background": False,
        "text": {"format": form or {"type": "text"}},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.shown for tool in asked.tools],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": asked.top_p,
        "truncation": "disabled",
    }
