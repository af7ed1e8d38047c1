"""Answers as JSON in OpenAI's form: whole ones, and the chunks of streams."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from trtla.api.errors import ApiError
from trtla.api.generation import Generation
from trtla.api.harmony import HarmonySplitter, Transcript, speaks_harmony
from trtla.api.protocol import FINISH_REASONS, ChatBody, CompletionBody
from trtla.api.reasoning import ReasoningSplitter, marks_reasoning
from trtla.api.tool_calls import AnswerSplitter, CallSplitter
from trtla.api.tool_formats import tool_format
from trtla.llm.answer import Chunk, Completion
from trtla.llm.prompt import RequestMaker
from trtla.results.metrics import Metrics
from trtla.runtime.request import TokenLogProb
from trtla.runtime.stats import tokens_per_step

Json = dict[str, Any]
Splitter = AnswerSplitter | HarmonySplitter
DONE = b"data: [DONE]\n\n"
_LINE_BREAKS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def event(data: Json) -> bytes:
    """Return one event of a stream."""
    return b"data: " + dumps(data) + b"\n\n"


def dumps(data: Json) -> bytes:
    """Return compact JSON in UTF-8, one line even for readers that split as `str.splitlines`.

    Halves of surrogate pairs, which UTF-8 does not have, are escaped.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for sign, escaped in _LINE_BREAKS:
        text = text.replace(sign, escaped)
    return text.encode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of an answer.

    `repeatable`: omit figures that differ when the same is requested again, such as how many drafts
    were accepted, unless the request wants them.
    """

    key: str
    """The answer's id, without the kind in front of it."""
    created: int
    """Unix time of the answer, in seconds."""
    model: str
    """The model's name in the API."""
    repeatable: bool = False


def _splitters(
    body: ChatBody | CompletionBody, llm: RequestMaker, generation: Generation, key: str
) -> dict[int, Splitter]:
    """By choice, what splits its text; none where it is one content."""
    if not isinstance(body, ChatBody) or llm.tokenizer is None:
        return {}
    parameters = {tool.function.name: tool.function.parameters for tool in body.offered}
    if speaks_harmony(llm.tokenizer, tools=bool(parameters)):
        return {
            index: HarmonySplitter(
                answer.input_text or "", body.begun_text, f"{key}-{index}", parameters
            )
            for index, answer in enumerate(generation.answers)
        }
    thinks = marks_reasoning(llm.tokenizer.template_text(bool(parameters)))
    format_ = tool_format(llm) if parameters else None
    if not (thinks or format_):
        return {}
    return {
        index: AnswerSplitter(
            ReasoningSplitter(answer.input_text or "", body.begun_text) if thinks else None,
            CallSplitter(format_, f"{key}-{index}", parameters) if format_ else None,
        )
        for index, answer in enumerate(generation.answers)
    }


class Writer:
    """The answer to one request, of either kind."""

    def __init__(
        self,
        body: ChatBody | CompletionBody,
        labels: Labels,
        generation: Generation,
        llm: RequestMaker,
    ) -> None:
        self._body, self._generation, self._labels = body, generation, labels
        self._chat = isinstance(body, ChatBody)
        kind = "chatcmpl" if self._chat else "cmpl"
        self.id = f"{kind}-{labels.key}"
        self._head = {
            "id": self.id,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": labels.created,
            "model": labels.model,
        }
        self._spell = llm.spell
        self._splitters = _splitters(body, llm, generation, labels.key)
        self._transcripts = {
            index: Transcript(splitter)
            for index, splitter in self._splitters.items()
            if isinstance(splitter, HarmonySplitter)
        }
        self._offsets: dict[int, int] = {}
        """Characters of each choice that log probabilities were listed for."""
        self._begun: set[int] = set()

    @property
    def _done(self) -> list[Completion]:
        return self._generation.done

    def begin(self) -> bytes:
        """Return the events in front of the first text: none."""
        return b""

    def add(self, chunk: Chunk) -> bytes | None:
        """Return a chunk as an event of a stream; None if it has no content yet."""
        silent = not (chunk.text or chunk.completion or chunk.logprobs)
        if silent or not self._body.stream:
            return None
        index = self._index(chunk)
        delta = self._delta(index, chunk)
        if delta is None:
            return None
        choice: Json = {"index": index, **delta}
        choice["logprobs"] = self._logprobs(index, chunk.logprobs)
        done = chunk.completion
        choice["finish_reason"] = self._reason(done) if done else None
        if self._body.pieces:
            choice["pieces"] = list(_pieces(chunk, self._transcripts.get(index)))
            choice["tokens"] = self._generation.answers[index].length  # so far
        return event(self._chunk([choice]))

    def _index(self, part: Chunk | Completion) -> int:
        return part.index * self._body.n + part.choice

    def _delta(self, index: int, chunk: Chunk) -> Json | None:
        """Return the new text; None if it is held back, and the chunk has nothing else."""
        if not self._chat:
            return {"text": chunk.text}
        new: Json = {"content": chunk.text}
        if index in self._splitters:
            done, last = chunk.completion, chunk.completion is not None
            new = self._splitters[index].push(chunk.text, last=last, cut=is_cut(done))
            if not (new or last or chunk.logprobs or self._body.pieces):
                return None
        role = {} if index in self._begun else {"role": "assistant"}
        self._begun.add(index)
        return {"delta": {**role, **(new or {"content": ""})}}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices}

    def end(self) -> Iterator[bytes]:
        """Yield the events after the last text."""
        options = self._body.stream_options
        more: Json = {}
        if options is not None and options.include_usage:
            more["usage"] = self._usage()
        if self._body.metrics:
            more["metrics"] = self._metrics()
        if more:
            yield event({**self._chunk([]), **more})
        yield DONE

    def failed(self, error: ApiError) -> bytes:
        """Return the last event of a stream that ends with an error."""
        return event(error.body)

    def whole(self) -> Json:
        """Return the whole answer, after the texts have ended."""
        choices = [self._choice(done) for done in sorted(self._done, key=self._index)]
        answer: Json = {**self._head, "choices": choices, "usage": self._usage()}
        if self._body.metrics:
            answer["metrics"] = self._metrics()
        return answer

    def _choice(self, done: Completion) -> Json:
        text: Json = {"text": done.text}
        if self._chat:
            text = {"message": {"role": "assistant", **self._message(done), "refusal": None}}
        logprobs, reason = self._logprobs(self._index(done), done.logprobs), self._reason(done)
        return {"index": self._index(done), **text, "logprobs": logprobs, "finish_reason": reason}

    def _reason(self, done: Completion) -> str | None:
        """Return why a choice ended; its text has been split."""
        reason, splitter = (
            FINISH_REASONS.get(done.finish_reason),
            self._splitters.get(self._index(done)),
        )
        return "tool_calls" if reason == "stop" and splitter and splitter.calls else reason

    def _message(self, done: Completion) -> Json:
        splitter = self._splitters.get(self._index(done))
        if splitter is None:
            return {"content": done.text}
        parts = splitter.push(done.text, last=True, cut=is_cut(done))
        calls = parts.get("tool_calls", [])
        for call in calls:
            del call["index"]
        return {"content": None if calls else "", **parts}

    def _logprobs(self, index: int, tokens: Sequence[TokenLogProb]) -> Json | None:
        """Return the log probabilities of these tokens of a choice; None if not requested."""
        if self._body.tops is None:
            return None
        return self._chat_logprobs(tokens) if self._chat else self._text_logprobs(index, tokens)

    def _chat_logprobs(self, tokens: Sequence[TokenLogProb]) -> Json:
        """Return a list of tokens, each with its alternatives."""

        def entry(token: int, logprob: float) -> Json:
            data = self._spell(token)
            return {"token": _text(data), "logprob": logprob, "bytes": list(data)}

        content = [
            {
                **entry(token.token, token.logprob),
                "top_logprobs": [entry(*alternative) for alternative in token.top],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _text_logprobs(self, index: int, tokens: Sequence[TokenLogProb]) -> Json:
        """Return parallel lists, with each token's offset in the text of its choice."""
        texts = [_text(self._spell(token.token)) for token in tokens]
        begins = accumulate(map(len, texts), initial=self._offsets.get(index, 0))
        *offsets, self._offsets[index] = begins
        tops = [{_text(self._spell(id_)): p for id_, p in reversed(token.top)} for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [dict(reversed(top.items())) for top in tops],
            "text_offset": offsets,
        }

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompts, and of the texts that have ended."""
        read = sum(len(done.input_ids) for done in self._done if done.choice == 0)
        return read, sum(len(done.output_ids) for done in self._done)

    def _usage(self) -> Json:
        read, written = self.tokens
        prompts = [done for done in self._done if done.choice == 0]
        whole = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        if self._labels.repeatable:
            return whole
        sources = [done.stats.sources or {} for done in self._done]
        counts = [each["expected"] for each in sources if "expected" in each]
        accepted = sum(sum(count.accepted) for count in counts)
        rejected = sum(sum(count.fed) for count in counts) - accepted
        return {
            **whole,
            "prompt_tokens_details": {"cached_tokens": sum(o.stats.reused_tokens for o in prompts)},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": rejected,
            },
        }

    def _metrics(self) -> Json:
        totals = Metrics.of(self._done, 0.0)
        sources = {
            name: {"fed": sum(counts.fed), "accepted": sum(counts.accepted)}
            for name, counts in (totals.sources or {}).items()
        }
        return {
            **_times(self._generation, len(self._done)),
            **totals.reported("api"),
            "acceptance_rate": totals.acceptance_rate,
            "tokens_per_step": tokens_per_step(
                sum(done.stats.decoded for done in self._done), totals.steps
            ),
            "sources": sources,
        }


def is_cut(done: Completion | None) -> bool:
    """Return True if a choice has ended before the model's end token."""
    return done is not None and done.finish_reason != "end_id"


def _times(generation: Generation, choices: int) -> Json:
    """Return milliseconds since the request arrived, and the rate after the first tokens."""
    now, first = time.monotonic(), generation.first or generation.started
    written, took = generation.tokens - choices, now - first
    return {
        "ttft_ms": 1000 * (first - generation.started),
        "e2e_ms": 1000 * (now - generation.started),
        "tokens_per_s": written / took if written > 0 and took > 0 else None,
    }


def _pieces(chunk: Chunk, transcript: Transcript | None) -> Iterator[Json]:
    """Yield the text in pieces; `source` is null for the model's own tokens."""
    sources = chunk.sources or ("",) * len(chunk.pieces or ())
    for (text, accepted), source in zip(chunk.pieces or (), sources, strict=True):
        text = transcript.push(text) if transcript else text
        yield {"text": text, "source": (source or "drafter") if accepted else None}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
