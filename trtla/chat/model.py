"""The model of a chat: which settings it takes, and how much of a conversation it can read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from trtla.chat.conversation import Fitted, Turn, fitted
from trtla.chat.decode import Decoded, Step, decode
from trtla.chat.settings import ChatSettings, changed
from trtla.errors import UsageError
from trtla.settings.drafting import check_used

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer

_LEAST = 64
"""Tokens of an answer that turns are left out for, where as many are wanted."""

EventT = TypeVar("EventT")


class ChatModel:
    """An opened model, as a chat uses it.

    Raises:
        UsageError: the model is an encoder-decoder, or has no tokenizer.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.limits = llm.limits
        self.tokenizer = _tokenizer(llm)

    @property
    def name(self) -> str:
        """As saved chats have it."""
        return self._llm.engine.name

    @property
    def description(self) -> str:
        """Where it runs."""
        return self._llm.description

    @property
    def full(self) -> str:
        """What it means that a conversation does not fit."""
        if self.limits.max_input_len < self.max_context - _LEAST:
            return f"the engine reads at most {self.limits.max_input_len} tokens (max_input_len)"
        return "the context is full"

    @property
    def max_context(self) -> int:
        """Most tokens of a conversation and its last answer."""
        return self.limits.max_text_len

    def resolved(self, settings: ChatSettings) -> ChatSettings:
        """The settings for this model: its own default, and no template where it has none."""
        chat = settings.chat and self.tokenizer.has_chat_template
        lookahead = settings.lookahead or self._llm.lookahead
        return replace(settings, chat=chat, lookahead=lookahead)

    def check(self, settings: ChatSettings, name: str) -> None:
        """Refuse what the executor would refuse of the next message.

        Raises:
            UsageError: `name` is what it calls the settings.
        """
        self._check_template(settings)
        self._check_length(settings.sampling.max_output_len)
        check_used([settings.drafter])
        path, loaded = settings.drafter.draft_model, self.limits.draft_models
        if path not in (None, *loaded):
            raise UsageError(
                f"the draft model {path} is not loaded", f"start again with --draft-model {path}"
            )
        for how in (settings, *([settings.by_ngrams] if settings.ngram else [])):
            self._check_request((0,), how, name)

    def _check_template(self, settings: ChatSettings) -> None:
        if not self.tokenizer.has_chat_template:
            if settings.chat or settings.system:
                what = "no place for a system message" if settings.system else "no chat template"
                raise UsageError(f"the model has {what}", "messages are continued as plain text")
        elif settings.chat and settings.system:
            system = {"role": "system", "content": settings.system}
            text = self.tokenizer.chat_text([system, {"role": "user", "content": "a"}])
            if settings.system.strip() not in text:
                raise UsageError(
                    "the model's chat template omits system messages", "say it in a message"
                )
            self.fitted((), "", settings, "the system message")

    def _check_length(self, length: int) -> None:
        context = self.limits.max_text_len
        if length >= context:
            raise UsageError(
                f"max_output_len {length} does not fit into the context of {context} tokens",
                f"--max-output-len may be {context - 1} at most",
            )

    def _check_request(self, ids: tuple[int, ...], how: ChatSettings, name: str) -> None:
        request = self._llm.request(ids, how.sampling, name, how.lookahead, how.drafter)
        self.limits.check(request)

    def fitted(
        self,
        turns: Sequence[Turn],
        message: str,
        settings: ChatSettings,
        name: str = "the message",
    ) -> tuple[Fitted, ChatSettings]:
        """What the model reads of a conversation, and the settings with the room for an answer.

        Answers shrink before turns are left out.

        Raises:
            UsageError: the message is too long; `name` is what it is called.
        """
        limits, wanted = self.limits, settings.sampling.max_output_len
        least = min(wanted, _LEAST, max(limits.max_text_len // 8, 1))
        room = min(limits.max_input_len, limits.max_text_len - least)
        chat, system = settings.chat, settings.system
        found = fitted(turns, message, self.tokenizer, chat=chat, room=room, system=system)
        length = max(min(wanted, limits.max_text_len - len(found.ids)), least)
        settings = changed(settings, {"sampling.max_output_len": length})
        if len(found.ids) > room:
            self._check_request(found.ids, settings.plain, name)
        return found, settings

    def decode(
        self,
        ids: tuple[int, ...],
        how: ChatSettings,
        stopped: Callable[[], bool],
        event: Callable[[Step], EventT],
        *,
        watch: bool = False,
        private: bool = False,
    ) -> Generator[EventT, None, Decoded]:
        """`decode.decode` with this model; `watch` and `private` where the engine can."""
        watch = watch and how.lookahead != "auto" and not self.limits.fixed_triples
        private = private and not self.limits.shares_blocks
        return decode(self._llm, ids, how, stopped, event, watch=watch, private=private)


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
