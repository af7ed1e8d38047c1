"""A chat: takes lines, asks the model, yields events. How they look is the front-end's.

A line that begins with `/` is a command, `//` begins a message with a slash; all else is a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from trtla.chat import saved
from trtla.chat.commands import Command, help_text, one_line, split
from trtla.chat.conversation import Fitted, Turn
from trtla.chat.decode import Comparison, Decoded, Metrics, Side, read_side
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
from trtla.chat.model import ChatModel
from trtla.chat.setting_types import TOGGLE, Known
from trtla.chat.settings import ChatSettings, changed
from trtla.console import counted
from trtla.errors import TrtlaError, UsageError

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.settings.sampling import SamplingParams


class Session:
    """One conversation with one model.

    Raises:
        UsageError: the model has no tokenizer, or the settings do not fit it.
    """

    def __init__(self, llm: LLM, settings: ChatSettings) -> None:
        self._model = ChatModel(llm)
        self.tokenizer = self._model.tokenizer
        settings = self._model.resolved(settings)
        self._model.check(settings, "the chat")
        self.start = self.settings = settings
        self.turns: list[Turn] = []
        self.total = Metrics()
        self.last: Decoded | None = None
        """The last answer, stopped ones included."""
        self.context = 0
        """Tokens of the conversation, as the model has them now."""
        self._left_out = 0
        """Oldest turns that the model no longer reads."""
        self._asked: tuple[tuple[int, ...], SamplingParams] | None = None
        """What the last turn's answer was drawn from, where that is known."""
        self._stopped = False

    @property
    def known(self) -> Known:
        """What completion offers."""
        limits = self._model.limits
        return Known(str(limits.lookahead), limits.draft_models)

    @property
    def max_context(self) -> int:
        """Most tokens that a conversation may have."""
        return self._model.max_context

    def stop(self) -> None:
        """End what is being decoded after its present step."""
        self._stopped = True

    def _is_stopped(self) -> bool:
        return self._stopped

    def handle(self, line: str) -> Iterator[Event]:
        """Do what a line asks for; errors are events, and the chat goes on."""
        self._stopped = False
        try:
            if line.startswith("/") and not line.startswith("//"):
                yield from self._command(line)
            elif line.strip():
                yield from self._answer(_valid(line.removeprefix("/")), self.turns)
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
            case "quit" | "exit":
                yield Leave()
            case "clear":
                yield ClearScreen()
            case "reset":
                yield self._reset()
            case "retry":
                yield from self._retry()
            case "undo":
                yield self._undo()
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
            clear = "; /system off clears it" if command.name == "system" else ""
            return Noted(f"/{command.name} is {command.shown(self.settings)}{clear}")
        new = command.apply(text, self.settings)
        self._model.check(new, shorten(f"/{command.name} {text}", _SHOWN, placeholder="..."))
        self.settings = new
        return Noted(f"/{command.name} is now {command.shown(new)}{self._effect(command.name)}")

    def _effect(self, name: str) -> str:
        """What a setting that has been changed does now, where one would expect something else."""
        settings = self.settings
        if name == "lookahead" and not settings.drafter.uses_lookahead:
            return f"; unused, {settings.drafter.name} drafts"
        if name in ("system", "chat") and settings.system and not settings.chat:
            return "; the system message is for /chat on only"
        if name == "system" and self.turns:
            kept = f"{_turns(len(self.turns))} kept"
            return f"; holds from the next answer on, {kept}: /reset begins anew"
        left = self.max_context - self.context
        if name == "max_output_len" and settings.sampling.max_output_len > left:
            return f"; the conversation leaves {left} at present"
        return ""

    def _answer(self, message: str, past: Sequence[Turn]) -> Iterator[Event]:
        """Answer a message that follows these turns."""
        found, settings = self._model.fitted(past, message, self.settings)
        if found.dropped > self._left_out:
            yield Noted(f"{self._model.full}: {_left_out(found.dropped)}; /undo makes room")
        self._left_out = found.dropped
        by_source = settings.colors == "source"
        event = partial(Streamed, debug=settings.debug, by_source=by_source)
        answer = yield from self._model.decode(
            found.ids, settings.answering, self._is_stopped, event, watch=settings.debug
        )
        self.total, self.last = self.total + answer.metrics, answer
        self.context = len(found.ids) + len(answer.ids)
        if answer.ids:
            turn = Turn(message, answer.text, answer.spoken_ids, answer.finish_reason)
            self.turns = [*past, turn]
            self._asked = (found.ids, settings.sampling)
        yield Answered(answer, settings.debug, by_source)
        wanted = self.settings.sampling.max_output_len
        if answer.finish_reason == "length" and len(answer.ids) < wanted:
            yield Noted(_CUT)
        if answer.finish_reason == "cancelled":
            yield Noted(_STOPPED if answer.ids else "stopped before the answer began")
            return
        yield from self._baselines(found.ids, answer, settings)

    def _retry(self) -> Iterator[Event]:
        turn, past = self._last("answer again"), self.turns[:-1]
        found, how = self._model.fitted(past, turn.message, self.settings)
        same = self._asked in (None, (found.ids, how.sampling))
        if same and not how.sampling.greedy:
            seed = how.sampling.seed + 1
            self.settings = changed(self.settings, {"sampling.seed": seed})
            yield Noted(f"/seed is now {seed}, for another draw")
        elif same and self._asked and turn.finish_reason != "cancelled":
            yield Noted(_GREEDY)
            return
        yield from self._answer(turn.message, past)

    def _undo(self) -> Event:
        turn = self._last("take back")
        self._take(self.turns[:-1], self.settings)
        what = shorten(turn.message, _SHOWN, placeholder="...")
        return Noted(f"taken back: {what}; {_turns(len(self.turns))} left")

    def _last(self, what: str) -> Turn:
        if not self.turns:
            raise UsageError(f"there is no message to {what}", "say something first")
        return self.turns[-1]

    def _take(self, turns: Sequence[Turn], settings: ChatSettings) -> None:
        """Go on with another conversation; raises UsageError when the model cannot read it."""
        found = self._model.fitted(turns, "", settings)[0] if turns else Fitted((), 0)
        self.settings, self.turns = settings, list(turns)
        self.context, self._left_out, self._asked = len(found.ids), found.dropped, None

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
            other = yield from self._model.decode(
                ids, how, self._is_stopped, partial(Busy, what=name)
            )
            if other.finish_reason == "cancelled":
                yield Noted(f"{name} stopped")
                return
            yield Said(_against(name, answer, other))

    def _compare(self, left: str, right: str) -> Iterator[Event]:
        """Both sides are private: neither copies the answer that was given, nor the other side."""
        sides = (self._side(left), self._side(right))
        message, texts = self._last("compare on").message, []
        for side in sides:
            found, how = self._model.fitted(self.turns[:-1], message, side.settings)
            event = partial(Busy, what=side.name)
            decoded = yield from self._model.decode(
                found.ids, how.answering, self._is_stopped, event, private=True
            )
            if decoded.finish_reason == "cancelled":
                yield Noted("comparison stopped")
                return
            texts.append(decoded)
        yield Compared(Comparison(sides, (texts[0], texts[1])))

    def _side(self, text: str) -> Side:
        side = read_side(text, self.settings)
        self._model.check(side.settings, text)
        return side

    def _reset(self) -> Event:
        self._take((), self.settings)
        return Noted("the conversation is forgotten")

    def _save(self, path: Path) -> Event:
        vocab_size = self._model.limits.vocab_size
        chat = saved.Chat(self._model.name, vocab_size, self.settings, tuple(self.turns))
        saved.save(path, chat)
        return Noted(f"{_turns(len(self.turns))} saved in {path}")

    def _load(self, path: Path) -> Event:
        chat = saved.load(path, self.settings)
        limits = self._model.limits
        if chat.vocab_size != limits.vocab_size:
            raise UsageError(
                f"{path} is a chat with {chat.model}, whose vocabulary has {chat.vocab_size} "
                f"tokens, not {limits.vocab_size}",
                "load it with that model",
            )
        for turn in chat.turns:
            limits.check_ids(turn.answer_ids, str(path))
        settings = self._model.resolved(chat.settings)
        self._model.check(settings, str(path))
        self._take(chat.turns, settings)
        full = f"; {self._model.full}: {_left_out(self._left_out)}" if self._left_out else ""
        return Noted(f"{_turns(len(chat.turns))} with {chat.model} loaded from {path}{full}")

    def _stats(self) -> str:
        total = self.total
        return "\n".join(
            [
                f"{counted(total.answers, 'answer')}, {total.tokens} tokens, {total.describe()}",
                f"prompts: {total.prompt_tokens} tokens, {total.reused_tokens} of them still in "
                "the K/V cache",
                f"context: {self.context} of {self.max_context} tokens, {_turns(len(self.turns))}"
                + (f", {self._left_out} left out" if self._left_out else ""),
                f"ran on {self._model.description}",
            ]
        )


_CACHE = "/cache is always on: every executor of trtla keeps keys and values"
_STOPPED = "stopped; what was written stays in the conversation"
_CUT = "the context is full: the answer ends here, and the oldest turns make room for the next one"
_GREEDY = (
    "the answer would be the same: greedy takes the most probable tokens; /temperature 0.8 draws"
)

_SHOWN = 60  # columns of a message that is repeated


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


def _left_out(number: int) -> str:
    turns = "oldest turn" if number == 1 else f"{number} oldest turns"
    return f"the {turns} {'is' if number == 1 else 'are'} left out"
