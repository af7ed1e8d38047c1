"""A chat session: reads lines, runs the model, and has a printer show the results.

A line that begins with `/` is a command, `//` begins a message with a slash; other lines are
messages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import click

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError
from trtla.extras.chat.conversation import Turn, load, save
from trtla.extras.chat.model import ChatModel, Reply, speed, tokens_per_s
from trtla.extras.chat.printer import Printer
from trtla.extras.chat.settings import ChatSettings, changed
from trtla.extras.chat.slash_commands import SlashCommands
from trtla.settings.fields import check_text

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Chunk

_CACHE = "/cache is always on: every executor of trtla keeps keys and values"
_STOPPED = "stopped; what was written stays in the conversation"
_FULL = "the context is full: the answer ends here, and the oldest turns make room for the next one"
_NO_ROOM = "the context is full"
_SHOWN = 60  # columns of a message that is repeated


class Session:
    """One conversation with one model."""

    def __init__(
        self, llm: LLM, settings: ChatSettings, printer: Printer, context: click.Context
    ) -> None:
        """`context` is that of the command `trtla chat`."""
        self._model, self._printer = ChatModel(llm), printer
        self.commands = SlashCommands(context)
        self.settings = self._model.resolved(settings)
        self._model.check(self.settings, "the chat")
        self.turns: list[Turn] = []
        self.replies: list[Reply] = []
        """All answers, stopped and forgotten ones included."""
        self.context = 0
        """Tokens of the present conversation in the model's context."""
        self.max_context = self._model.limits.max_text_len
        self._left_out = 0
        """Oldest turns that no longer fit the context."""
        self.stops = 0
        """Requests to stop the present answer, which ends after its step."""
        self.exit_code = 0
        """The exit code of a script: 0, or that of a refused line."""

    def handle(self, line: str) -> bool:
        """Handle a line; errors are printed, and the chat continues. False: leave."""
        self.stops = 0
        try:
            if line.startswith("/") and not line.startswith("//"):
                return self._command(line)
            if line.strip():
                message = line.removeprefix("/")
                check_text(message, "the message")
                self._answer(message, self.turns)
        except TrtlaError as error:
            self.exit_code = max(self.exit_code, error.exit_code)
            self._printer.refuse(self.commands.one_line(error))
        return True

    def _command(self, line: str) -> bool:
        typed, *rest = line.strip().lstrip("/").split(maxsplit=1) or [""]
        name, text = self.commands.find(typed), "".join(rest)
        if self.commands.is_setting(name):
            self._set(name, text)
            return True
        if text and name not in ("help", "cache", "save", "load"):
            raise UsageError(f"/{name} takes no value, and {text!r} follows it", "omit it")
        match name:
            case "help":
                listed = self.commands.help(self.settings, whole=text == "all")
                self._printer.out(self._printer.clean(listed))
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
                path, usual = _path(text), self._model.resolved(ChatSettings())
                save(path, self.turns, self.settings, usual)
                self._printer.note(f"{_turns(len(self.turns))} saved in {path}")
            case "load":
                self._load(_path(text))
        return True

    def _set(self, name: str, text: str) -> None:
        commands = self.commands
        if not text and commands.needs_value(name):
            self._printer.note(f"/{name} is {_line(commands.shown(name, self.settings))}")
            return
        try:
            new = commands.apply(name, text, self.settings)
        except UsageError as error:
            raise error.within("" if f"/{name}" in error.message else f"/{name}: ") from None
        self._model.check(new, shorten(f"/{name} {text}", _SHOWN, placeholder="..."))
        self.settings = self._model.resolved(new)
        self._printer.note(f"/{name} is now {_line(commands.shown(name, self.settings))}")

    def _answer(self, message: str, past: Sequence[Turn]) -> None:
        ids, dropped, settings = self._model.fitted(past, message, self.settings)
        if dropped > self._left_out:
            self._printer.note(f"{_NO_ROOM}: {_left_out(dropped)}; /undo makes room")
        self._left_out = dropped
        how = settings if settings.speculative else settings.plain
        reply = self._decode(ids, how, show=True)
        self.replies.append(reply)
        self.context = len(ids) + len(reply.ids)
        if reply.ids:
            self.turns = [*past, Turn(message, reply.text)]
        self._end(reply)
        if reply.finish_reason != "cancelled":
            self._baselines(ids, reply, settings)

    def _decode(self, ids: tuple[int, ...], how: ChatSettings, *, show: bool) -> Reply:
        """Decode one prompt; the reply is `cancelled` if it was stopped."""
        reply, debug = Reply(len(ids)), show and how.debug
        with closing(self._model.decode(ids, how, debug=debug)) as steps:
            for chunk, rejected in steps:
                reply.add(chunk)
                if debug:
                    self._debug(reply.steps, chunk, rejected)
                elif show:
                    self._printer.text(chunk.pieces or ())
                if self.stops:
                    break
        return reply

    def _debug(self, number: int, chunk: Chunk, rejected: tuple[int, ...]) -> None:
        ids, accepted, text = chunk.token_ids, chunk.accepted, self._model.tokenizer.decode
        texts = (text(ids[:accepted]), text(rejected), text(ids[accepted:]))
        self._printer.step(number, accepted, texts)

    def _end(self, reply: Reply) -> None:
        if self.settings.debug:
            self._printer.text([(reply.text, False)])
        self._printer.out("")
        most = self.settings.sampling.max_output_len
        if reply.finish_reason == "cancelled":
            self._printer.note(_STOPPED if reply.ids else "stopped before the answer began")
        elif reply.finish_reason == "length":
            cut = f"cut at {counted(most, 'token')}: /max_output_len allows more"
            self._printer.note(_FULL if len(reply.ids) < most else cut)

    def _baselines(self, ids: tuple[int, ...], answer: Reply, settings: ChatSettings) -> None:
        """Decode the same prompt and seed by the methods that /target and /ngram switch on."""
        methods = [("plain decoding", settings.plain)] if settings.target else []
        methods += [("n-grams", settings.by_ngrams)] if settings.ngram else []
        for name, how in methods:
            other = self._decode(ids, how, show=False)
            if other.finish_reason == "cancelled":
                self._printer.note(f"{name} stopped")
                return
            self._printer.out(_against(name, answer, other))

    def _retry(self) -> None:
        turn = self._last("answer again")
        if not self.settings.sampling.greedy:
            seed = self.settings.sampling.seed + 1
            self.settings = changed(self.settings, {"seed": seed})
            self._printer.note(f"/seed is now {seed}, for another draw")
        self._answer(turn.message, self.turns[:-1])

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
        ids, self._left_out, _ = self._model.fitted(turns, "", settings) if turns else ((), 0, None)
        self.settings, self.turns, self.context = settings, list(turns), len(ids)

    def _load(self, path: Path) -> None:
        try:
            turns, settings = load(path)
            settings = self._model.resolved(settings)
            self._model.check(settings, str(path))
        except UsageError as error:
            raise error.within("" if str(path) in error.message else f"{path}: ") from None
        self._take(turns, settings)
        full = f"; {_NO_ROOM}: {_left_out(self._left_out)}" if self._left_out else ""
        self._printer.note(f"{_turns(len(turns))} loaded from {path}{full}")

    def _stats(self) -> str:
        replies, left_out = self.replies, f", {self._left_out} left out" if self._left_out else ""
        tokens = counted(sum(len(reply.ids) for reply in replies), "token")
        prompts = counted(sum(reply.prompt_tokens for reply in replies), "token")
        reused = sum(reply.reused_tokens for reply in replies)
        return (
            f"{counted(len(replies), 'answer')}, {tokens}, {speed(*replies)}\n"
            f"prompts: {prompts}, {reused} of them still in the K/V cache\n"
            f"context: {self.context} of {self.max_context} tokens, {_turns(len(self.turns))}"
            f"{left_out}\nran on {self._model.description}"
        )


def _path(text: str) -> Path:
    if not text or "\0" in text or os.path.isdir(os.path.expanduser(text)):
        raise UsageError(f"{text!r} is not a file", "write a path, such as chat.json")
    path = Path(os.path.expanduser(text))
    if path.exists() and not path.is_file():  # a device or a pipe could be read without end
        raise UsageError(f"{path} is not a regular file", "choose another path")
    return path


def _line(text: str) -> str:
    """A value on one line, as a note shows it."""
    return text.replace("\n", "\\n")


def _against(name: str, answer: Reply, other: Reply) -> str:
    base = tokens_per_s([other])
    ratio = f"{tokens_per_s([answer]) / base:.2f}x" if base else "not measurable"
    equal = "the same text" if answer.ids == other.ids else "another text"
    return f"{name}: {speed(other)}, {equal}; the answer: {speed(answer)}, {ratio}"


def _turns(number: int) -> str:
    return counted(number, "turn")


def _left_out(number: int) -> str:
    turns = "oldest turn" if number == 1 else f"{number} oldest turns"
    return f"the {turns} {'is' if number == 1 else 'are'} left out"
