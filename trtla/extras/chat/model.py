"""The model of a chat: the settings that it accepts, its context, and decoding of a text."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, cast

from trtla.errors import UsageError, named
from trtla.extras.chat.conversation import Fitted, Turn, fitted
from trtla.extras.chat.settings import ChatSettings, changed
from trtla.runtime.request import DraftRecorder, RecorderWatch
from trtla.runtime.stats import tokens_per_step
from trtla.settings.drafting import check_used

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Chunk, Piece
    from trtla.llm.text import Tokenizer
    from trtla.runtime.draft import Draft
    from trtla.runtime.request import FinishReason

_LEAST = 64
"""Tokens reserved for an answer, if it may be so long; turns are dropped for them."""


@dataclass(slots=True)
class Tally:
    """Counters of one answer, or of several added up; names as in docs/algorithm.md."""

    answers: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were still cached."""
    tokens: int = 0
    steps: int = 0
    accepted: int = 0
    decode_s: float = 0.0
    """From the first token to the last."""
    decoded: int = 0
    """Tokens in that time."""

    def count(self, chunk: Chunk, time_s: float | None) -> None:
        """Add one chunk, `time_s` after the one before; None for the prefill's chunk."""
        self.tokens += len(chunk.token_ids)
        self.accepted += chunk.accepted
        self.decode_s += time_s or 0.0
        if time_s is not None and chunk.token_ids:
            self.steps += 1
            self.decoded += len(chunk.token_ids)
        if chunk.completion:
            self.reused_tokens += chunk.completion.stats.reused_tokens

    def add(self, other: Tally) -> None:
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    @property
    def tokens_per_step(self) -> float:
        return tokens_per_step(self.decoded, self.steps)

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first, per second: without the prefill."""
        return self.decoded / self.decode_s if self.decode_s else 0.0

    def describe(self) -> str:
        """Return speed and compression in the words used everywhere."""
        return f"{self.tokens_per_s:.0f} tokens/s, {self.tokens_per_step:.2f} tokens per step"


@dataclass(slots=True)
class Reply:
    """A text so far, and its counters."""

    tally: Tally
    ids: tuple[int, ...] = ()
    """With an end token."""
    pieces: list[Piece] = field(default_factory=list)
    finish_reason: FinishReason = "cancelled"
    sources: dict[str, int] = field(default_factory=dict)
    """Accepted tokens by source; of whole texts of `auto` only."""
    silent: frozenset[int] = frozenset()
    """Tokens that are no text: a stop token at the end is not shown."""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    @property
    def spoken_ids(self) -> tuple[int, ...]:
        stopped = self.finish_reason == "stop_words" and self.ids[-1] in self.silent
        return self.ids[:-1] if self.finish_reason == "end_id" or stopped else self.ids

    def add(self, chunk: Chunk, time_s: float | None) -> None:
        """Add one chunk; `time_s` as in `Tally.count`."""
        self.tally.count(chunk, time_s)
        self.ids += chunk.token_ids
        self.pieces += chunk.pieces or ()
        if chunk.completion is not None:
            self.finish_reason = chunk.completion.finish_reason
            counts = chunk.completion.stats.sources or {}
            self.sources = {name: sum(count.accepted) for name, count in counts.items()}


class ChatModel:
    """An open model, for a chat."""

    def __init__(self, llm: LLM, name: str | None = None) -> None:
        from trtla.llm.reading import log_template_note

        self._llm = llm
        self.limits = llm.limits
        self.tokenizer = _tokenizer(llm)
        log_template_note(self.tokenizer)
        self.name = name or llm.engine.name
        self.description = llm.description

    @property
    def full(self) -> str:
        """The reason why a conversation does not fit."""
        if self.limits.max_input_len < self.limits.max_text_len - _LEAST:
            return f"the engine reads at most {self.limits.max_input_len} tokens (max_input_len)"
        return "the context is full"

    def resolved(self, settings: ChatSettings) -> ChatSettings:
        """Return the settings for this model: its default lookahead, no missing template, and as
        the default length half the context: the rest is for the conversation."""
        sampling = settings.sampling.fitted(self.limits.max_text_len // 2)
        chat = settings.chat and self.tokenizer.has_chat_template
        lookahead = settings.lookahead or self._llm.lookahead
        return replace(settings, sampling=sampling, chat=chat, lookahead=lookahead)

    def check(self, settings: ChatSettings, name: str) -> None:
        """Refuse settings that the executor would refuse with the next message."""
        self._check_template(settings)
        length, context = settings.sampling.max_output_len, self.limits.max_text_len
        if length >= context:
            raise UsageError(
                f"max_output_len {length} does not fit into the context of {context} tokens",
                f"{named('max_output_len')} may be {context - 1} at most",
            )
        check_used([settings.drafter])
        path, loaded = settings.drafter.draft_model, self.limits.draft_models
        if path not in (None, *loaded):
            raise UsageError(
                f"the draft model {path} is not loaded", f"start again with --draft-model {path}"
            )
        self._check_request((0,), settings, name)
        self._llm.grammar_start(settings.sampling, name)
        if settings.ngram:
            self._check_request((0,), settings.by_ngrams, name)

    def _check_template(self, settings: ChatSettings) -> None:
        if not self.tokenizer.has_chat_template:
            if settings.chat or settings.system:
                missing = "no place for a system message" if settings.system else "no chat template"
                raise UsageError(f"the model has {missing}", "messages are continued as plain text")
        elif settings.chat and settings.system:
            system = {"role": "system", "content": settings.system}
            text = self.tokenizer.chat_text([system, {"role": "user", "content": "a"}])
            if settings.system.strip() not in text:
                raise UsageError(
                    "the model's chat template omits system messages", "say it in a message"
                )
            self.fitted((), "", settings, "the system message")

    def _check_request(self, ids: tuple[int, ...], how: ChatSettings, name: str) -> None:
        from trtla.llm.prompt import PromptRequest

        request = PromptRequest(name, ids, how.sampling, how.lookahead, how.drafter)
        self._llm.request(request)

    def fitted(
        self, turns: Sequence[Turn], message: str, settings: ChatSettings, name: str = "the message"
    ) -> tuple[Fitted, ChatSettings]:
        """Fit a conversation into the context; return settings with the room for an answer.

        Answers shrink before turns are dropped.
        """
        limits, wanted = self.limits, settings.sampling.max_output_len
        least = min(wanted, _LEAST, max(limits.max_text_len // 8, 1))
        room = min(limits.max_input_len, limits.max_text_len - least)
        chat, system = settings.chat, settings.system
        conversation = fitted(turns, message, self.tokenizer, chat=chat, room=room, system=system)
        length = max(min(wanted, limits.max_text_len - len(conversation.ids)), least)
        settings = changed(settings, {"sampling.max_output_len": length})
        if len(conversation.ids) > room:
            self._check_request(conversation.ids, settings.plain, name)
        return conversation, settings

    def decode(
        self,
        ids: tuple[int, ...],
        how: ChatSettings,
        show: Callable[[Chunk, Reply, tuple[int, ...]], bool],
        *,
        watch: bool = False,
    ) -> Reply:
        """Decode one prompt; the reply is `cancelled` if it was stopped.

        Args:
            show: gets each step, the reply so far, and the rejected draft tokens behind the
                accepted ones (with `watch`, which engines with fixed triples ignore); True stops.
        """
        watch = watch and how.lookahead != "auto" and not self.limits.fixed_triples
        watcher = RecorderWatch(DraftRecorder) if watch else None
        chunks = self._llm.stream(
            [ids], how.sampling, how.lookahead, drafter=how.drafter, names=["the message"],
            watch=watcher,
        )  # fmt: skip
        silent = self.tokenizer.control_ids.union(how.sampling.stop_ids)
        tally = Tally(answers=1, prompt_tokens=len(ids))
        reply, last = Reply(tally, silent=silent), None
        with closing(cast("Generator[Chunk, None, None]", chunks)) as stream:
            for number, chunk in enumerate(stream):
                now = time.perf_counter()
                reply.add(chunk, None if last is None else now - last)
                last = now
                rejected = _rejected(watcher.recorders, number, chunk) if watcher else ()
                if show(chunk, reply, rejected) and chunk.completion is None:
                    break
        return reply


def _tokenizer(llm: LLM) -> Tokenizer:
    if llm.limits.max_encoder_len is not None:
        raise UsageError(
            f"{llm.engine.name} is an encoder-decoder, which answers one prompt", "use trtla run"
        )
    if llm.tokenizer is None:
        raise UsageError(
            f"{llm.engine.name} has no tokenizer files", "give the tokenizer with --tokenizer-dir"
        )
    return llm.tokenizer


def _rejected(recorders: Sequence[DraftRecorder], number: int, chunk: Chunk) -> tuple[int, ...]:
    """Return the best branch's rejected tokens, behind the accepted ones in the chunk's step."""
    forwards = recorders[-1].forwards[number : number + 1] if recorders else []
    if not forwards or not chunk.token_ids:
        return ()
    return rejected_tail(forwards[0].draft, chunk.token_ids[: chunk.accepted])


def rejected_tail(draft: Draft, accepted: Sequence[int]) -> tuple[int, ...]:
    """Return the longest continuation of the accepted tokens among the drafted branches."""
    allowed = set(draft.candidates)
    branches = [(draft.path(node), draft.tokens_to(node)) for node in draft.candidates]
    fitting = [
        tokens[len(accepted) :]
        for nodes, tokens in branches
        if allowed.issuperset(nodes) and tokens[: len(accepted)] == tuple(accepted)
    ]
    return max(fitting, key=len, default=())
