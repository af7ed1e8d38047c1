"""The slash commands: one table that feeds parsing, /help and completion.

A command either changes settings, named by their paths in `ChatSettings`, or performs an action
that the session implements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill, shorten, wrap
from typing import Any

import click
from click.shell_completion import CompletionItem

from trtla.errors import TrtlaError, UsageError, closest
from trtla.extras.chat import values
from trtla.extras.chat.settings import ChatSettings, changed, read
from trtla.extras.chat.values import FILE, TOGGLE, Known, Value
from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import declared, flag_name
from trtla.settings.grammar import SETTINGS as GRAMMARS
from trtla.settings.sampling import SamplingParams

_SHOWN = 24  # columns of a value in /help
_LEAST_TEXT = 24  # columns of what is wrapped, however narrow the screen
_GUESSES = 3  # commands that may have been meant


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One slash command."""

    name: str
    help: str
    value: Value | None = None
    """The value that follows it; None: it takes none."""
    paths: tuple[str, ...] = ()
    """The settings that it changes; empty for an action."""
    aliases: tuple[str, ...] = ()
    """Other names that are accepted, and not shown."""

    @property
    def usage(self) -> str:
        return f"/{self.name}" + (f" {self.value.usage}" if self.value else "")

    def shown(self, settings: ChatSettings) -> str:
        """Return its present value as it would be typed; empty for commands without one."""
        return self.value.show(self._read(settings)) if self.value and self.paths else ""

    def _read(self, settings: ChatSettings) -> Any:
        values = tuple(read(settings, path) for path in self.paths)
        return values[0] if len(values) == 1 else values

    def parse(self, text: str) -> Any:
        """Parse the text behind the command; raises UsageError if it is invalid."""
        if self.value is None and text:
            raise UsageError(f"/{self.name}: {text!r} follows what takes no value", "omit it")
        if self.value is None or (self.value is TOGGLE and not text):
            return None
        try:
            return self.value.parse(text)
        except UsageError as error:
            raise error.within(f"/{self.name}: ") from None
        except click.BadParameter as error:
            message = f"/{self.name}: {error.message.rstrip('.')}"
            raise UsageError(message, f"write {self.usage}") from None

    def apply(self, text: str, settings: ChatSettings) -> ChatSettings:
        """Return the settings after this command; raises UsageError if they are impossible."""
        value = self.parse(text)
        if self.value is TOGGLE and value is None:
            value = not self._read(settings)
        parts = value if len(self.paths) > 1 else (value,)
        return changed(settings, dict(zip(self.paths, parts, strict=True)))


def commands_of(kind: type, part: str, *others: str) -> Iterator[ChatCommand]:
    """Yield a command for each setting of a class except `others`."""
    for setting in declared(kind).values():
        if setting.name not in others:
            former = (setting.option.chat,) if setting.option.chat else ()
            paths = (f"{part}.{setting.name}",)
            yield ChatCommand(
                setting.name, setting.option.help, values.value_of(setting), paths, former
            )


_FILTERS = tuple(f"sampling.{name}" for name in ("temperature", "top_k", "top_p"))
_GRAMMARS = (
    ("json_schema", "FILE|JSON", "Schema of answers."),
    ("regex", "PATTERN", "A regular expression that answers match as a whole."),
    ("grammar", "FILE|RULES", "Rules in Lark or GBNF that answers follow."),
)

TABLE = (
    ChatCommand(
        "help", "Everyday commands and their values; /help all has all.", values.MORE, (), ("?",)
    ),
    ChatCommand("quit", "Leave, as Ctrl-D does.", aliases=("bye", "q")),
    ChatCommand("exit", "Leave, as /quit does."),
    ChatCommand("clear", "Clear the screen; the conversation stays."),
    ChatCommand("reset", "Forget the conversation; the settings stay.", aliases=("new",)),
    ChatCommand("retry", "Answer the last message again, with another seed.", aliases=("regen",)),
    ChatCommand("undo", "Take the last message and its answer back."),
    ChatCommand(
        "system", "The system message, before the conversation.", values.SYSTEM, ("system",)
    ),
    ChatCommand("chat", "Messages go into the model's chat template.", TOGGLE, ("chat",)),
    *commands_of(SamplingParams, "sampling", "allotted_time_ms"),
    ChatCommand(
        "processor",
        "Temperature, top-k and top-p at once: greedy, nucleus 0.8 0.9, ...",
        values.PROCESSOR,
        _FILTERS,
    ),
    *(
        ChatCommand(name, about, values.grammar_value(GRAMMARS[name], usage), ("sampling.grammar",))
        for name, usage, about in _GRAMMARS
    ),
    ChatCommand("speculative", "Draft at all; off answers plainly.", TOGGLE, ("speculative",)),
    ChatCommand(
        "lookahead",
        "Window, ngram, verification; auto: what pays.",
        values.LOOKAHEAD,
        ("lookahead",),
    ),
    ChatCommand("drafter", "What drafts, one or several.", values.DRAFTER, ("drafter.drafter",)),
    *commands_of(DrafterSettings, "drafter", "drafter"),
    ChatCommand("cache", "The K/V cache, which is always on here.", TOGGLE),
    ChatCommand("target", "Answer plainly too, and report the ratio.", TOGGLE, ("target",)),
    ChatCommand("ngram", "Answer with n-grams too, and report the ratio.", TOGGLE, ("ngram",)),
    ChatCommand("debug", "Every step: accepted, rejected, the model's own.", TOGGLE, ("debug",)),
    ChatCommand(
        "colors", "Tint accepted tokens alike, or by source (auto).", values.COLORS, ("colors",)
    ),
    ChatCommand("stats", "Counters over all answers, and the context."),
    ChatCommand("save", "Write conversation and settings to a JSON file.", FILE),
    ChatCommand("load", "Go on with what was saved.", FILE),
)
"""All commands."""

_STORAGE = ChatCommand(
    "set_ngramstorage",
    "/ngram_kind and /ngram_order at once.",
    values.NGRAM_STORAGE,
    ("drafter.ngram_kind", "drafter.ngram_order"),
)
"""A command of Speculative-Decoding; /help does not list it."""

BY_NAME: Mapping[str, ChatCommand] = {
    name: command for command in (*TABLE, _STORAGE) for name in (command.name, *command.aliases)
}
"""Commands by all names that are accepted."""

_EVERYDAY = (
    *("help", "quit", "clear", "reset", "retry", "undo", "system", "max_output_len"),
    *("temperature", "seed", "lookahead", "drafter", "stats", "save", "load"),
)
"""Commands that /help lists: with the text below it they fit a screen of 24 lines."""
_OTHERS = tuple(command.name for command in TABLE if command.name not in _EVERYDAY)
_MORE = (
    "/help all lists {} more: how tokens are chosen, what drafts, what is shown. All else is a "
    "message; // begins one with a slash."
)
_REST = (
    "All else is a message; // begins one with a slash. Toggles without a value toggle, other "
    "settings show theirs."
)


def split(line: str) -> tuple[ChatCommand, str]:
    """Split a line such as `/gamma  6` into its command and the text behind it."""
    name, *value = line.strip().lstrip("/").split(maxsplit=1) or [""]
    return find(name), "".join(value)


_OF_START = ("device", "dtype", "max_seq_len", "threads")
"""Settings of opened models, which no command changes."""


def find(name: str) -> ChatCommand:
    """Find a command by its name, in any case and with `-` for `_`; raises UsageError."""
    wanted = _plain(name)
    if wanted in BY_NAME:
        return BY_NAME[wanted]
    begun = [known for known in BY_NAME if wanted and known.startswith(wanted)]
    near = closest(wanted, (*BY_NAME, *_OF_START))
    if near in _OF_START:
        raise UsageError(f"/{name} is not a command", f"start again with {flag_name(near)}")
    words = set(wanted.split("_"))
    alike = [known for known in BY_NAME if words.intersection(known.split("_"))]
    meant = dict.fromkeys(f"/{BY_NAME[k].name}" for k in begun or ([near] if near else alike))
    guess = f"did you mean {' or '.join(list(meant)[:_GUESSES])}? " if meant else ""
    raise UsageError(f"/{name} is not a command", f"{guess}/help all lists them")


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def help_text(now: ChatSettings, start: ChatSettings, *, whole: bool, width: int) -> str:
    """List commands with their present values in brackets; `whole`: all, with their whole help.

    Initial values follow if they differ.
    """
    shown = [BY_NAME[name] for name in (*_EVERYDAY, *(_OTHERS if whole else ()))]
    first = max(len(command.usage) for command in shown)
    room, lines = max(width - first - 2, _LEAST_TEXT), list[str]()
    for command in shown:
        about = command.help if whole else f"{command.help.rstrip('.').partition(';')[0]}."
        parts = wrap(about + _values(command, now, start), room)
        lines += [f"{command.usage:{first}}  {parts[0]}"]
        lines += [" " * (first + 2) + part for part in parts[1:]]
    rest = _REST if whole else _MORE.format(len(_OTHERS))
    return "\n".join([*lines, "", fill(rest, max(width, _LEAST_TEXT))])


def _values(command: ChatCommand, now: ChatSettings, start: ChatSettings) -> str:
    value, was = (shorten(command.shown(at), _SHOWN, placeholder="...") for at in (now, start))
    return f" [{value}{f', at the start {was}' if value != was else ''}]" if value else ""


def complete(line: str, known: Known) -> tuple[str, list[CompletionItem]]:
    """Complete a line up to the cursor: return its end, and texts that may replace it."""
    if not line.startswith("/"):
        return "", []
    return _complete(line, [f"/{command.name}" for command in TABLE], known)


def _complete(text: str, names: Sequence[str], known: Known) -> tuple[str, list[CompletionItem]]:
    name, blank, value = text.partition(" ")
    if not blank:
        begun = [known_name for known_name in names if known_name.startswith(_plain(name))]
        return text, [
            CompletionItem(known_name, help=find(known_name.lstrip("/")).help)
            for known_name in begun
        ]
    command, typed = BY_NAME.get(_plain(name.lstrip("/"))), value.lstrip()
    if command is None or command.value is None:
        return "", []
    offered = command.value.examples(known, typed)
    if command.value is not FILE:
        offered = _starting(offered, typed, part=command.value.list)
    return typed, list(map(CompletionItem, offered))


def _starting(known: Iterable[str], incomplete: str, *, part: bool) -> list[str]:
    """The names that continue a typed text; of a comma list (`part`) its last item, none twice."""
    before, comma, last = incomplete.rpartition(",") if part else ("", "", incomplete)
    taken = before.split(",")
    return [
        before + comma + name
        for name in known
        if name.startswith(last) and name not in taken and not (comma and name == "none")
    ]


def one_line(error: TrtlaError) -> str:
    """Format an error for the chat: flags in its hint become commands if there are such."""

    def spell(name: str) -> str:
        on = name.removeprefix("no_")
        if on in BY_NAME:
            return f"/{on}" if on == name else f"/{on} off"
        return flag_name(name)

    message, hint = error.spelt(spell, start=flag_name)
    return " ".join(f"{message}{'; ' if hint else ''}{hint or ''}".split())
