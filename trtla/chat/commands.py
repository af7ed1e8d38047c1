"""The slash commands: one table that feeds parsing, /help and completion.

A command either changes settings, named by their paths in `ChatSettings`, or does something, which
the session implements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from trtla.chat.settings import (
    DRAFTER,
    FILE,
    PAIR,
    PROCESSOR,
    STORAGE,
    TOGGLE,
    TRIPLE,
    ChatSettings,
    Known,
    SettingType,
    changed,
    read,
    type_of,
)
from trtla.errors import TrtlaError, UsageError, did_you_mean
from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import declared
from trtla.settings.sampling import SamplingParams

_FLAG = re.compile(r"--([a-z][a-z-]*)")
_VALUE = click.Argument(["value"])  # what click calls the thing that it completes


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    help: str
    type: SettingType | None = None
    """Of what follows it; None: nothing does."""
    paths: tuple[str, ...] = ()
    """The settings it changes; none: it does something."""

    @property
    def usage(self) -> str:
        """The command with what follows it."""
        return f"/{self.name} {self.type.name}" if self.type else f"/{self.name}"

    def shown(self, settings: ChatSettings) -> str:
        """Its present value as it would be typed; empty for commands without one."""
        return self.type.show(self._value(settings)) if self.type and self.paths else ""

    def _value(self, settings: ChatSettings) -> Any:
        values = tuple(read(settings, path) for path in self.paths)
        return values[0] if len(values) == 1 else values

    def parse(self, text: str) -> Any:
        """What the text behind the command means; raises UsageError when it means nothing."""
        if self.type is None:
            if text:
                raise UsageError(f"/{self.name}: {text!r} follows what takes no value", "omit it")
            return None
        try:
            return self.type.convert(text, None, None)
        except UsageError as error:
            raise UsageError(f"/{self.name}: {error.message}", error.hint) from None
        except click.BadParameter as error:
            raise UsageError(f"/{self.name}: {error.message.rstrip('.')}") from None

    def apply(self, text: str, settings: ChatSettings) -> ChatSettings:
        """The settings after this command; raises UsageError when they are not possible."""
        value = self.parse(text)
        if self.type is TOGGLE and value is None:
            value = not self._value(settings)
        values = value if len(self.paths) > 1 else (value,)
        return changed(settings, dict(zip(self.paths, values, strict=True)))


def commands_of(kind: type, part: str, *others: str) -> Iterator[Command]:
    """A command for every setting of a class, but for `others`."""
    for one in declared(kind).values():
        if one.name not in others:
            name, paths = one.option.chat or one.name, (f"{part}.{one.name}",)
            yield Command(name, one.option.help, type_of(one), paths)


_FILTERS = ("temperature", "top_k", "top_p")
_FILTER_PATHS = tuple(f"sampling.{name}" for name in _FILTERS)
_STORAGE = ("drafter.ngram_kind", "drafter.ngram_order")

TABLE = (
    Command("help", "All commands and their values."),
    Command("quit", "Leave, as Ctrl-D does."),
    Command("clear", "Clear the screen; the conversation stays."),
    Command("reset", "Forget the conversation; the settings stay."),
    Command("chat", "Messages go into the model's chat template.", TOGGLE, ("chat",)),
    *commands_of(SamplingParams, "sampling", *_FILTERS, "stop", "allotted_time_ms"),
    Command(
        "processor", "How tokens are chosen: greedy, nucleus 0.8 0.9, ...", PROCESSOR, _FILTER_PATHS
    ),
    Command("speculative", "Draft at all; off answers plainly.", TOGGLE, ("speculative",)),
    Command("lookahead", "Window, ngram, verification; auto: what pays.", TRIPLE, ("lookahead",)),
    Command("drafter", "What drafts, one or several.", DRAFTER, ("drafter.drafter",)),
    *commands_of(DrafterSettings, "drafter", "drafter", "ngram_kind", "ngram_order"),
    Command("set_ngramstorage", "basic or onelevel n-grams, and their order.", STORAGE, _STORAGE),
    Command("cache", "The K/V cache, which is always on here.", TOGGLE),
    Command("target", "Answer plainly too, and report the ratio.", TOGGLE, ("target",)),
    Command("ngram", "Answer with n-grams too, and report the ratio.", TOGGLE, ("ngram",)),
    Command("compare", "The last message with two settings, side by side.", PAIR),
    Command("debug", "Every step: accepted, rejected, the model's own.", TOGGLE, ("debug",)),
    Command("stats", "Counters over all answers, and the context."),
    Command("save", "Write conversation and settings to a JSON file.", FILE),
    Command("load", "Go on with what was saved.", FILE),
)
"""All commands, in the order of /help."""

BY_NAME: Mapping[str, Command] = {command.name: command for command in TABLE}

_OF_FLAG = {
    path.rpartition(".")[2].replace("_", "-"): command.name
    for command in TABLE
    for path in command.paths
}

_REST = (
    "All else is a message; // begins one with a slash. Toggles without a value toggle, other\n"
    "settings show theirs. /compare takes several settings a side, ; between them and no slashes:\n"
    "/compare lookahead 7,7,7 | drafter ngram; gamma 6"
)


def split(line: str) -> tuple[Command, str]:
    """The command of a line such as `/length  64`, and the text behind it.

    Raises:
        UsageError: there is no such command.
    """
    name, _, rest = line.strip().lstrip("/").partition(" ")
    return find(name), " ".join(rest.split())


def find(name: str) -> Command:
    """A command by its name, in any case and with `-` for `_`; raises UsageError."""
    wanted = _plain(name)
    if wanted in BY_NAME:
        return BY_NAME[wanted]
    begun = [known for known in BY_NAME if wanted and known.startswith(wanted)]
    if begun:
        guess = f"did you mean /{begun[0]}? "
    else:
        guess = did_you_mean(f"/{wanted}", (f"/{known}" for known in BY_NAME))
    raise UsageError(f"/{name} is not a command", f"{guess}/help lists them all")


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def help_text(now: ChatSettings, start: ChatSettings) -> str:
    """Every command with its present value, and the one at the start where that differs."""
    rows = []
    for command in TABLE:
        value, was = command.shown(now), command.shown(start)
        note = f" (at the start {was})" if value != was else ""
        rows.append((command.usage, value, command.help + note))
    first, second = (max(len(row[i]) for row in rows) for i in range(2))
    lines = [f"{usage:{first}}  {value:{second}}  {text}" for usage, value, text in rows]
    return "\n".join([*lines, "", _REST])


def complete(line: str, known: Known) -> tuple[str, list[CompletionItem]]:
    """What a line up to the cursor may become: its end, and texts to stand there instead."""
    commands = {f"/{command.name}": command for command in TABLE}
    return _complete(line, commands, known) if line.startswith("/") else ("", [])


def _complete(
    text: str, commands: Mapping[str, Command], known: Known
) -> tuple[str, list[CompletionItem]]:
    name, blank, rest = text.partition(" ")
    if not blank:
        names = [key for key in commands if key.startswith(name.lower())]
        return text, [CompletionItem(key, help=commands[key].help) for key in names]
    command, value = commands.get(_plain(name)), rest.lstrip()
    if command is None or command.type is None:
        return "", []
    if command.type is PAIR:  # the setting that is being typed last
        last = value.replace(";", "|").rpartition("|")[2].lstrip()
        return _complete(last, {one.name: one for one in TABLE if one.paths}, known)
    context = click.Context(click.Command("chat"), obj=known)
    return value, command.type.shell_complete(context, _VALUE, value)


def one_line(error: TrtlaError) -> str:
    """An error as the chat shows it: flags in its hint become commands, but for those of builds."""
    clauses = (error.hint or "").split(", ")
    hint = ", ".join(c if "build" in c else _FLAG.sub(_as_command, c) for c in clauses)
    return " ".join(f"{error.message}{'; ' if hint else ''}{hint}".split())


def _as_command(match: re.Match[str]) -> str:
    name = _OF_FLAG.get(match[1], match[1])
    return f"/{name}" if name in BY_NAME else match[0]
