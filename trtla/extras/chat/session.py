"""A chat session: reads lines, runs the model, and has a printer show the results.

A line that begins with `/` is a command, `//` begins a message with a slash; other lines are
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError
from trtla.extras.chat.conversation import Fitted, Turn
from trtla.extras.chat.model import ChatModel, Reply, Tally
from trtla.extras.chat.printer import Printer
from trtla.extras.chat.settings import Chat, ChatSettings, changed, load, save
from trtla.extras.chat.slash_commands import ChatCommand, help_text, one_line, split
from trtla.extras.chat.values import TOGGLE, Known
from trtla.settings.fields import check_text

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Chunk
    from trtla.settings.sampling import SamplingParams

_CACHE = "/cache is always on: every executor of trtla keeps keys and values"
_STOPPED = "stopped; what was written stays in the conversation"
_FULL = "the context is full: the answer ends here, and the oldest turns make room for the next one"
_GREEDY = (
    "the answer would be the same: greedy takes the most probable tokens; /temperature 0.8 draws"
)

_SHOWN = 60  # columns of a message that is repeated


class Session:
    """One conversation with one model."""

    def __init__(
        self, llm: LLM, settings: ChatSettings, printer: Printer, name: str | None = None
    ) -> None:
        """`name` is the model's name in the command; None: that of its folder."""
        self._model, self._printer = ChatModel(llm, name), printer
        settings = self._model.resolved(settings)
        self._model.check(settings, "the chat")
        self.start = self.settings = settings
        self.turns: list[Turn] = []
        self.total = Tally()
        self.last: Reply | None = None
        """The last answer, stopped ones included."""
        self.context = 0
        """Tokens of the present conversation in the model's context."""
        self.max_context = self._model.limits.max_text_len
        self._left_out = 0
        """Oldest turns that no longer fit the context."""
        self._drawn_from: tuple[tuple[int, ...], SamplingParams] | None = None
        """The input of the last turn's answer, if known."""
        self._stopped = False
        self.exit_code = 0
        """The exit code of a script: 0, or that of a refused line."""

    @property
    def known(self) -> Known:
        limits = self._model.limits
        return Known(str(limits.lookahead), limits.draft_models)

    def stop(self) -> None:
        """End the present decoding after its step."""
        self._stopped = True

    def handle(self, line: str) -> bool:
        """Handle a line; errors are printed, and the chat continues. False: leave."""
        self._stopped = False
        try:
            if line.startswith("/") and not line.startswith("//"):
                return self._command(line)
            if line.strip():
                message = line.removeprefix("/")
                check_text(message, "the message")
                self._answer(message, self.turns)
        except TrtlaError as error:
            self.exit_code = max(self.exit_code, error.exit_code)
            self._printer.refuse(one_line(error))
        return True

    def _command(self, line: str) -> bool:
        command, text = split(line)
        if command.paths:
            self._set(command, text)
            return True
        value = command.parse(text)
        match command.name:
            case "help":
                width = self._printer.width
                self._printer.out(help_text(self.settings, self.start, whole=value, width=width))
            case "quit" | "exit":
                return False
            case "clear":
                self._printer.clear()
            case "reset":
                self._take((), self.settings)
                self._printer.note("the conversation is forgotten")
            case "retry":
                self._retry()
            case "undo":
                self._undo()
            case "cache":
                self._printer.note(_CACHE)
            case "stats":
                self._printer.out(self._stats())
            case "save":
                self._save(value)
            case "load":
                self._load(value)
        return True

    def _set(self, command: ChatCommand, text: str) -> None:
        name = command.name
        if not text and command.value is not TOGGLE:
            clear = "; /system off clears it" if name == "system" else ""
            self._printer.note(f"/{name} is {_line(command.shown(self.settings))}{clear}")
            return
        new = command.apply(text, self.settings)
        self._model.check(new, shorten(f"/{name} {text}", _SHOWN, placeholder="..."))
        self.settings = new
        self._printer.note(f"/{name} is now {_line(command.shown(new))}{self._effect(name)}")

    def _effect(self, name: str) -> str:
        """Describe the effect of a changed setting if it may surprise."""
        settings = self.settings
        if name == "lookahead" and not settings.drafter.uses_lookahead:
            return f"; unused, {settings.drafter.name} drafts"
        if name in ("system", "chat") and settings.system and not settings.chat:
            return "; the system message is for /chat on only"
        if name == "system" and self.turns:
            kept = f"{_turns(len(self.turns))} kept"
            return f"; holds from the next answer on, {kept}: /reset starts again"
        left = self.max_context - self.context
        if name == "max_output_len" and settings.sampling.max_output_len > left:
            return f"; the conversation leaves {left} at present"
        return ""

    def _answer(self, message: str, past: Sequence[Turn]) -> None:
        conversation, settings = self._model.fitted(past, message, self.settings)
        if conversation.dropped > self._left_out:
            left_out = _left_out(conversation.dropped)
            self._printer.note(f"{self._model.full}: {left_out}; /undo makes room")
        self._left_out = conversation.dropped
        how, watch = settings.for_answers, settings.debug
        reply = self._model.decode(conversation.ids, how, self._show, watch=watch)
        self.total.add(reply.tally)
        self.last = reply
        self.context = len(conversation.ids) + len(reply.ids)
        if reply.ids:
            turn = Turn(message, reply.text, reply.spoken_ids, reply.finish_reason)
            self.turns = [*past, turn]
            self._drawn_from = (conversation.ids, settings.sampling)
        self._end(reply)
        if reply.finish_reason != "cancelled":
            self._baselines(conversation.ids, reply, settings)

    def _show(self, chunk: Chunk, reply: Reply, rejected: tuple[int, ...]) -> bool:
        """Print one step of the answer; return True to stop."""
        self._live(reply)
        if self.settings.debug:
            ids, accepted, text = chunk.token_ids, chunk.accepted, self._model.tokenizer.decode
            texts = (text(ids[:accepted]), text(rejected), text(ids[accepted:]))
            self._printer.step(reply.tally.steps, accepted, texts)
        else:
            by_source = self.settings.colors == "source"
            self._printer.text(chunk.pieces or (), chunk.sources if by_source else ())
        return self._stopped

    def _live(self, reply: Reply, name: str = "") -> None:
        tally = reply.tally
        tokens = counted(tally.tokens, "token")
        self._printer.live(f"{name}{tally.describe()}, {tokens}; Ctrl-C stops")

    def _end(self, reply: Reply) -> None:
        if self.settings.debug:
            self._printer.text(reply.pieces)
        self._printer.out("")
        if self.settings.colors == "source":
            self._printer.legend(reply.sources)
        most = self.settings.sampling.max_output_len
        if reply.finish_reason == "cancelled":
            self._printer.note(_STOPPED if reply.ids else "stopped before the answer began")
        elif reply.finish_reason == "length":
            cut = f"cut at {counted(most, 'token')}: /max_output_len allows more"
            self._printer.note(_FULL if len(reply.ids) < most else cut)

    def _silently(self, ids: tuple[int, ...], how: ChatSettings, name: str) -> Reply | None:
        """Decode a text without showing it; None if it was stopped."""

        def show(chunk: Chunk, reply: Reply, rejected: tuple[int, ...]) -> bool:
            self._live(reply, f"{name}: ")
            return self._stopped

        reply = self._model.decode(ids, how, show)
        return None if reply.finish_reason == "cancelled" else reply

    def _baselines(self, ids: tuple[int, ...], answer: Reply, settings: ChatSettings) -> None:
        """Decode the same prompt and seed by the methods that /target and /ngram switch on."""
        methods = [("plain decoding", settings.plain)] if settings.target else []
        methods += [("n-grams", settings.by_ngrams)] if settings.ngram else []
        for name, how in methods:
            other = self._silently(ids, how, name)
            if other is None:
                self._printer.note(f"{name} stopped")
                return
            self._printer.out(_against(name, answer, other))

    def _retry(self) -> None:
        turn, past = self._last("answer again"), self.turns[:-1]
        conversation, how = self._model.fitted(past, turn.message, self.settings)
        same = self._drawn_from in (None, (conversation.ids, how.sampling))
        if same and not how.sampling.greedy:
            seed = how.sampling.seed + 1
            self.settings = changed(self.settings, {"sampling.seed": seed})
            self._printer.note(f"/seed is now {seed}, for another draw")
        elif same and self._drawn_from and turn.finish_reason != "cancelled":
            self._printer.note(_GREEDY)
            return
        self._answer(turn.message, past)

    def _undo(self) -> None:
        turn = self._last("take back")
        self._take(self.turns[:-1], self.settings)
        message = shorten(turn.message, _SHOWN, placeholder="...")
        self._printer.note(f"taken back: {message}; {_turns(len(self.turns))} left")

    def _last(self, purpose: str) -> Turn:
        if not self.turns:
            raise UsageError(f"there is no message to {purpose}", "say something first")
        return self.turns[-1]

    def _take(self, turns: Sequence[Turn], settings: ChatSettings) -> None:
        """Switch to another conversation; raises UsageError if the model cannot read it."""
        conversation = self._model.fitted(turns, "", settings)[0] if turns else Fitted((), 0)
        self.settings, self.turns = settings, list(turns)
        self.context, self._left_out, self._drawn_from = (
            len(conversation.ids),
            conversation.dropped,
            None,
        )

    def _save(self, path: Path) -> None:
        model, vocab_size = self._model.name, self._model.limits.vocab_size
        save(path, Chat(model, vocab_size, self.settings, tuple(self.turns)))
        self._printer.note(f"{_turns(len(self.turns))} saved in {path}")

    def _load(self, path: Path) -> None:
        chat = load(path, self.settings)
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
        turns = _turns(len(chat.turns))
        self._printer.note(f"{turns} with {chat.model} loaded from {path}{full}")

    def _stats(self) -> str:
        total = self.total
        left_out = f", {self._left_out} left out" if self._left_out else ""
        return (
            f"{counted(total.answers, 'answer')}, {counted(total.tokens, 'token')}, "
            f"{total.describe()}\nprompts: {counted(total.prompt_tokens, 'token')}, "
            f"{total.reused_tokens} of them still in the K/V cache\n"
            f"context: {self.context} of {self.max_context} tokens, {_turns(len(self.turns))}"
            f"{left_out}\nran on {self._model.description}"
        )


def _line(text: str) -> str:
    """A value on one line, as a note shows it."""
    return text.replace("\n", "\\n")


def _against(name: str, answer: Reply, other: Reply) -> str:
    base = other.tally.tokens_per_s
    ratio = f"{answer.tally.tokens_per_s / base:.2f}x" if base else "not measurable"
    equal = "the same text" if answer.ids == other.ids else "another text"
    return (
        f"{name}: {other.tally.describe()}, {equal}; the answer: {answer.tally.describe()}, {ratio}"
    )


def _turns(number: int) -> str:
    return counted(number, "turn")


def _left_out(number: int) -> str:
    turns = "oldest turn" if number == 1 else f"{number} oldest turns"
    return f"the {turns} {'is' if number == 1 else 'are'} left out"
