"""The model of a chat: the settings that it accepts, its context, and decoding of an answer."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from trtla.errors import UsageError, named
from trtla.extras.chat.conversation import Turn, fitted
from trtla.extras.chat.settings import ChatSettings, changed
from trtla.runtime.request import DraftRecorder, RecorderWatch
from trtla.runtime.stats import tokens_per_step
from trtla.settings.drafting import check_used
from trtla.settings.messages import Asking

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Chunk
    from trtla.llm.text import Tokenizer
    from trtla.runtime.draft import Draft
    from trtla.runtime.request import FinishReason

_LEAST = 64
"""Tokens reserved for an answer, if it may be so long; turns are dropped for them."""


@dataclass(slots=True)
class Reply:
    """An answer so far, and its counters."""

    prompt_tokens: int
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were still cached."""
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "cancelled"
    steps: int = 0
    """Steps behind the prefill."""
    decoded: int = 0
    """Tokens of these steps."""
    decode_s: float = 0.0
    _at: float | None = None

    def add(self, chunk: Chunk) -> None:
        """Add one step's chunk; the first one is the prefill's."""
        if self._at is not None:
            self.decode_s += chunk.at - self._at
            self.decoded += len(chunk.token_ids)
            self.steps += bool(chunk.token_ids)
        self._at = chunk.at
        self.ids += chunk.token_ids
        self.text += chunk.text
        if chunk.completion is not None:
            self.finish_reason = chunk.completion.finish_reason
            self.reused_tokens = chunk.completion.stats.reused_tokens


def tokens_per_s(replies: Sequence[Reply]) -> float:
    """Return tokens behind the first of each answer, per second: without the prefill."""
    seconds = sum(reply.decode_s for reply in replies)
    return sum(reply.decoded for reply in replies) / seconds if seconds else 0.0


def speed(*replies: Reply) -> str:
    """Describe speed and compression in the words used everywhere."""
    compression = tokens_per_step(
        sum(reply.decoded for reply in replies), sum(reply.steps for reply in replies)
    )
    return f"{tokens_per_s(replies):.0f} tokens/s, {compression:.2f} tokens per step"


class ChatModel:
    """An open model, for a chat."""

    def __init__(self, llm: LLM) -> None:
        from trtla.api.harmony import SIGNS, speaks_harmony
        from trtla.llm.reading import log_template_note

        self._llm = llm
        self.limits = llm.limits
        self.tokenizer = _tokenizer(llm)
        log_template_note(self.tokenizer)
        self._is_harmony = speaks_harmony(self.tokenizer, tools=False)
        if self._is_harmony:
            llm.shown = SIGNS
        self.description = llm.description

    def resolved(self, settings: ChatSettings) -> ChatSettings:
        """Return the settings for this model: its default lookahead, no missing template, and as
        the default length half the context: the rest is for the conversation."""
        sampling = settings.sampling.fitted(self.limits.max_text_len // 2)
        chat = settings.chat and self.tokenizer.has_chat_template
        lookahead = settings.lookahead or self._llm.lookahead
        return replace(settings, sampling=sampling, chat=chat, lookahead=lookahead)

    def check(self, settings: ChatSettings, name: str) -> None:
        """Refuse settings that the executor would refuse with the next message."""
        length, context = settings.sampling.max_output_len, self.limits.max_text_len
        if length >= context:
            raise UsageError(
                f"max_output_len {length} does not fit into the context of {context} tokens",
                f"{named('max_output_len')} may be {context - 1} at most",
            )
        check_used([settings.drafting])
        path = settings.drafting.draft_model
        if path not in (None, *self.limits.draft_models):
            raise UsageError(
                f"the draft model {path} is not loaded", f"start again with --draft-model {path}"
            )
        head = self.limits.loaded(settings.drafting).head
        if head not in (None, *self.limits.heads):
            raise UsageError(f"the head {head} is not loaded", f"start again with --head {head}")
        self._check_request((0,), settings, name)
        self._llm.grammar_start(settings.sampling, name)
        if (settings.chat or settings.system) and not self.tokenizer.has_chat_template:
            raise UsageError(
                "the model has no chat template", "messages are continued as plain text"
            )
        Asking(settings.chat, settings.system or None)
        if settings.system:
            self.fitted((), "", settings, "the system message")

    def _check_request(self, ids: tuple[int, ...], how: ChatSettings, name: str) -> None:
        from trtla.llm.prompt import PromptRequest

        self._llm.request(PromptRequest(name, ids, how.sampling, how.lookahead, how.drafting))

    def fitted(
        self, turns: Sequence[Turn], message: str, settings: ChatSettings, name: str = "the message"
    ) -> tuple[tuple[int, ...], int, ChatSettings]:
        """Fit a conversation into the context; return its ids, the number of oldest turns that were
        dropped, and settings with the room for an answer.

        Answers shrink before turns are dropped.
        """
        limits, wanted = self.limits, settings.sampling.max_output_len
        least = min(wanted, _LEAST, max(limits.max_text_len // 8, 1))
        room = min(limits.max_input_len, limits.max_text_len - least)
        ids, dropped = fitted(turns, message, self.tokenizer, settings, room)
        length = max(min(wanted, limits.max_text_len - len(ids)), least)
        settings = changed(settings, {"max_output_len": length})
        if len(ids) > room:
            self._check_request(ids, settings.plain, name)
        return ids, dropped, settings

    def decode(
        self, ids: tuple[int, ...], how: ChatSettings, *, debug: bool = False
    ) -> Generator[tuple[Chunk, tuple[int, ...]], None, None]:
        """Decode one prompt; yield each step's chunk, and the rejected draft tokens behind its
        accepted ones.

        Args:
            debug: find the rejected tokens; `auto` and engines with fixed triples have none.
        """
        watch = debug and how.lookahead != "auto" and not self.limits.fixed_triples
        watcher = RecorderWatch(DraftRecorder) if watch else None
        chunks = self._llm.stream(
            [ids], how.sampling, how.lookahead, drafter=how.drafting, names=["the message"],
            watch=watcher,
        )  # fmt: skip
        with closing(cast("Generator[Chunk, None, None]", chunks)) as stream:
            shown = _without_signs(stream) if self._is_harmony else stream
            for number, chunk in enumerate(shown):
                yield chunk, _rejected(watcher.recorders, number, chunk) if watcher else ()


def _without_signs(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks of an answer in harmony, with its thoughts as other models mark them."""
    from trtla.api.harmony import HarmonySplitter, Transcript

    transcript = Transcript(HarmonySplitter())
    for chunk in chunks:
        pieces = ((transcript.push(text), accepted) for text, accepted in chunk.pieces or ())
        yield replace(chunk, pieces=tuple(piece for piece in pieces if piece[0]))


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
