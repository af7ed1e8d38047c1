"""A chat: takes lines, asks the model, yields events. How they look is the front-end's.

A line that begins with `/` is a command, `//` begins a message with a slash; all else is a message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trtla.chat import saved
from trtla.chat.commands import Command, help_text, one_line, split
from trtla.chat.conversation import Fitted, Turn, fitted
from trtla.chat.decode import Comparison, Decoded, Metrics, Side, Step, decode, read_side
from trtla.chat.events import (
    Answered,
    Busy,
    ClearScreen,
    Compared,
    Event,
    Leave,
    Noted,
    Refused,
    Said,
    Streamed,
)
from trtla.chat.settings import TOGGLE, ChatSettings, Known
from trtla.console import counted
from trtla.errors import TrtlaError, UsageError
from trtla.settings.drafting import check_used

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer


class Session:
    """One conversation with one model.

    Raises:
        UsageError: the model has no tokenizer, or the settings do not fit it.
    """

    def __init__(self, llm: LLM, settings: ChatSettings) -> None:
        self._llm = llm
        self.tokenizer = _tokenizer(llm)
        settings = self._resolved(settings)
        self._check(settings, "the chat")
        self.start = self.settings = settings
        self.turns: list[Turn] = []
        self.total = Metrics()
        self.last: Decoded | None = None
        """The last answer, stopped ones included."""
        self.context = 0
        """Tokens of the conversation, as the model has them now."""
        self._stopped = False

    @property
    def known(self) -> Known:
        """What completion offers."""
        limits = self._llm.limits
        return Known(str(limits.lookahead), limits.draft_models)

    @property
    def max_context(self) -> int:
        """Most tokens that a conversation may have."""
        return self._llm.limits.max_text_len

    def stop(self) -> None:
        """End what is being decoded after its present step."""
        self._stopped = True

    def handle(self, line: str) -> Iterator[Event]:
        """Do what a line asks for; errors are events, and the chat goes on."""
        self._stopped = False
        try:
            if line.startswith("/") and not line.startswith("//"):
                yield from self._command(line)
            elif line.strip():
                yield from self._answer(_valid(line.removeprefix("/")))
        except TrtlaError as error:
            yield Refused(one_line(error))

    def _command(self, line: str) -> Iterator[Event]:
        command, text = split(line)
        if command.paths:
            yield self._set(command, text)
            return
        value = command.parse(text)
        match command.name:
            case "help":
                yield Said(help_text(self.settings, self.start))
            case "quit":
                yield Leave()
            case "clear":
                yield ClearScreen()
            case "reset":
                yield self._reset()
            case "cache":
                yield Noted(_CACHE)
            case "stats":
                yield Said(self._stats())
            case "save":
                yield self._save(value)
            case "load":
                yield self._load(value)
            case "compare":
                yield from self._compare(*value)

    def _set(self, command: Command, text: str) -> Event:
        if not text and command.type is not TOGGLE:
            return Noted(f"/{command.name} is {command.shown(self.settings)}")
        new = command.apply(text, self.settings)
        self._check(new, f"/{command.name} {text}".rstrip())
        self.settings = new
        unused = command.name == "lookahead" and not new.drafter.uses_lookahead
        note = f"; unused, {new.drafter.name} drafts" if unused else ""
        return Noted(f"/{command.name} is now {command.shown(new)}{note}")

    def _resolved(self, settings: ChatSettings) -> ChatSettings:
        """The settings for this model: its own triple, and no template where it has none."""
        chat = settings.chat and self.tokenizer.has_chat_template
        lookahead = settings.lookahead or self._llm.limits.lookahead
        return replace(settings, chat=chat, lookahead=lookahead)

    def _check(self, settings: ChatSettings, name: str) -> None:
        """Refuse what the executor would refuse of the next message."""
        if settings.chat and not self.tokenizer.has_chat_template:
            raise UsageError(
                "the model has no chat template", "messages are continued as plain text"
            )
        check_used([settings.drafter])
        path, loaded = settings.drafter.draft_model, self._llm.limits.draft_models
        if path not in (None, *loaded):
            raise UsageError(
                f"the draft model {path} is not loaded", f"start again with --draft-model {path}"
            )
        for how in (settings, *([settings.by_ngrams] if settings.ngram else [])):
            self._check_request((0,), how, name)

    def _check_request(self, ids: tuple[int, ...], how: ChatSettings, name: str) -> None:
        request = self._llm.request(ids, how.sampling, name, how.lookahead, how.drafter)
        self._llm.limits.check(request)

    def _answer(self, message: str) -> Iterator[Event]:
        settings = self.settings
        found = self._fitted(self.turns, message, settings)
        if found.dropped:
            del self.turns[: found.dropped]
            yield Noted(f"the context is full: the {_oldest(found.dropped)} forgotten")
        event = partial(Streamed, debug=settings.debug)
        answer = yield from self._decode(found.ids, settings.answering, event, watch=settings.debug)
        self.total, self.last = self.total + answer.metrics, answer
        self.context = len(found.ids) + len(answer.ids)
        if answer.ids:
            turn = Turn(message, answer.text, answer.spoken_ids, answer.finish_reason)
            self.turns.append(turn)
        yield Answered(answer, settings.debug)
        if answer.finish_reason == "cancelled":
            yield Noted(_STOPPED if answer.ids else "stopped before the answer began")
            return
        yield from self._baselines(found.ids, answer, settings)

    def _fitted(self, turns: Sequence[Turn], message: str, settings: ChatSettings) -> Fitted:
        """What the model reads of a conversation; raises UsageError when the message is too long.

        Nothing is forgotten then.
        """
        limits, length = self._llm.limits, settings.sampling.max_output_len
        room = min(limits.max_input_len, limits.max_text_len - length)
        found = fitted(turns, message, self.tokenizer, chat=settings.chat, room=room)
        if len(found.ids) > room:
            self._check_request(found.ids, settings.plain, "the message")
        return found

    def _decode(
        self,
        ids: tuple[int, ...],
        how: ChatSettings,
        event: Callable[[Step], Event],
        *,
        watch: bool = False,
    ) -> Generator[Event, None, Decoded]:
        watch = watch and how.lookahead != "auto" and not self._llm.limits.fixed_triples
        return decode(self._llm, ids, how, lambda: self._stopped, event, watch=watch)

    def _baselines(
        self, ids: tuple[int, ...], answer: Decoded, settings: ChatSettings
    ) -> Iterator[Event]:
        """The same prompt and seed by the methods that are switched on beside the answer's."""
        methods = {}
        if settings.target:
            methods["plain decoding"] = settings.plain
        if settings.ngram:
            methods["n-grams"] = settings.by_ngrams
        for name, how in methods.items():
            other = yield from self._decode(ids, how, partial(Busy, what=name))
            if other.finish_reason == "cancelled":
                yield Noted(f"{name} stopped")
                return
            yield Said(_against(name, answer, other))

    def _compare(self, left: str, right: str) -> Iterator[Event]:
        sides = (self._side(left), self._side(right))
        if not self.turns:
            raise UsageError("there is no message to compare on", "say something first")
        texts = []
        for side in sides:
            found = self._fitted(self.turns[:-1], self.turns[-1].message, side.settings)
            event = partial(Busy, what=side.name)
            decoded = yield from self._decode(found.ids, side.settings.answering, event)
            if decoded.finish_reason == "cancelled":
                yield Noted("comparison stopped")
                return
            texts.append(decoded)
        yield Compared(Comparison(sides, (texts[0], texts[1])))

    def _side(self, text: str) -> Side:
        side = read_side(text, self.settings)
        self._check(side.settings, text)
        return side

    def _reset(self) -> Event:
        self.turns.clear()
        self.context = 0
        return Noted("the conversation is forgotten")

    def _save(self, path: Path) -> Event:
        vocab_size = self._llm.limits.vocab_size
        chat = saved.Chat(self._llm.engine.name, vocab_size, self.settings, tuple(self.turns))
        saved.save(path, chat)
        return Noted(f"{_turns(len(self.turns))} saved in {path}")

    def _load(self, path: Path) -> Event:
        chat = saved.load(path, self.settings)
        limits = self._llm.limits
        if chat.vocab_size != limits.vocab_size:
            raise UsageError(
                f"{path} is a chat with {chat.model}, whose vocabulary has {chat.vocab_size} "
                f"tokens, not {limits.vocab_size}",
                "load it with that model",
            )
        for turn in chat.turns:
            limits.check_ids(turn.answer_ids, str(path))
        settings = self._resolved(chat.settings)
        self._check(settings, str(path))
        self.context = len(self._fitted(chat.turns, "", settings).ids)
        self.settings, self.turns = settings, list(chat.turns)
        return Noted(f"{_turns(len(chat.turns))} with {chat.model} loaded from {path}")

    def _stats(self) -> str:
        total = self.total
        return "\n".join(
            [
                f"{counted(total.answers, 'answer')}, {total.tokens} tokens, {total.describe()}",
                f"prompts: {total.prompt_tokens} tokens, {total.reused_tokens} of them still in "
                "the K/V cache",
                f"context: {self.context} of {self.max_context} tokens, {_turns(len(self.turns))}",
                f"ran on {self._llm.description}",
            ]
        )


_CACHE = "/cache is always on: every executor of trtla keeps keys and values"
_STOPPED = "stopped; what was written stays in the conversation"


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


def _against(name: str, answer: Decoded, other: Decoded) -> str:
    base = other.metrics.tokens_per_s
    ratio = f"{answer.metrics.tokens_per_s / base:.2f}x" if base else "not measurable"
    equal = "the same text" if answer.ids == other.ids else "another text"
    return (
        f"{name}: {other.metrics.describe()}, {equal}; the answer: "
        f"{answer.metrics.describe()}, {ratio}"
    )


def _valid(text: str) -> str:
    """Without lone surrogates, which stand for bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _turns(number: int) -> str:
    return f"{number} turn{'' if number == 1 else 's'}"


def _oldest(number: int) -> str:
    return "oldest turn is" if number == 1 else f"{number} oldest turns are"
