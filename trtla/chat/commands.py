"""The slash commands: one table that feeds parsing, /help, completion and the tests.

A command either changes settings, named by their paths in `ChatSettings`, or does something, which
the session knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from trtla.chat.arguments import (
    Argument,
    Drafter,
    File,
    GammaMax,
    Pair,
    ProcessorArgument,
    Real,
    Storage,
    Toggle,
    Triple,
    Whole,
)
from trtla.chat.settings import ChatSettings, changed, read
from trtla.errors import TrtlaError, UsageError

_FLAG = re.compile(r"--([a-z][a-z-]*)")


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    argument: Argument
    help: str
    paths: tuple[str, ...] = ()
    """The settings it changes; none: it does something."""

    @property
    def usage(self) -> str:
        """The command with what follows it."""
        return f"/{self.name} {self.argument.metavar}".rstrip()

    def value(self, settings: ChatSettings) -> Any:
        """Its present value: of several settings, a tuple."""
        values = tuple(read(settings, path) for path in self.paths)
        return values[0] if len(values) == 1 else values

    def shown(self, settings: ChatSettings) -> str:
        """Its present value as it would be typed; empty for commands without one."""
        return self.argument.show(self.value(settings)) if self.paths else ""

    def parse(self, text: str, settings: ChatSettings) -> Any:
        """What the text behind the command means; raises UsageError when it means nothing."""
        try:
            return self.argument.parse(text, self.value(settings) if self.paths else None)
        except UsageError as error:
            raise UsageError(f"/{self.name}: {error.message}", error.hint) from None

    def apply(self, text: str, settings: ChatSettings) -> ChatSettings:
        """The settings after this command; raises UsageError when they are not possible."""
        value = self.parse(text, settings)
        values = value if len(self.paths) > 1 else (value,)
        return changed(settings, dict(zip(self.paths, values, strict=True)))


TABLE = (
    Command("help", Argument(), "All commands and their values."),
    Command("quit", Argument(), "Leave, as Ctrl-D does."),
    Command("clear", Argument(), "Clear the screen; the conversation stays."),
    Command("reset", Argument(), "Forget the conversation; the settings stay."),
    Command("chat", Toggle(), "Messages go into the model's chat template.", ("chat",)),
    Command("length", Whole(), "Most tokens of an answer.", ("sampling.max_output_len",)),
    Command(
        "processor",
        ProcessorArgument(),
        "How tokens are chosen: greedy, nucleus 0.8 0.9, ...",
        ("sampling.temperature", "sampling.top_k", "sampling.top_p"),
    ),
    Command("seed", Whole(), "Fixes the sampled text.", ("sampling.seed",)),
    Command("speculative", Toggle(), "Draft at all; off answers plainly.", ("speculative",)),
    Command("lookahead", Triple(), "Window, ngram, verification; auto: what pays.", ("lookahead",)),
    Command("drafter", Drafter(), "What drafts, one or several.", ("drafter.drafter",)),
    Command("gamma", Whole(), "Most tokens that other drafters propose.", ("drafter.gamma",)),
    Command("egag", Toggle(), "The draft model's entropy chooses how many.", ("drafter.egag",)),
    Command("egag_gamma_min", Whole(), "Fewest that EGAG takes.", ("drafter.gamma_min",)),
    Command("egag_gamma_max", GammaMax(), "Most that EGAG takes.", ("drafter.gamma_max",)),
    Command("egag_ema", Real(), "Weight of the past in EGAG's choice.", ("drafter.ema",)),
    Command(
        "top_k_filler",
        Whole(),
        "Likeliest tokens that n-grams are counted with.",
        ("drafter.top_k_filler",),
    ),
    Command(
        "set_ngramstorage",
        Storage(),
        "basic or onelevel n-grams, and their order.",
        ("drafter.ngram_kind", "drafter.ngram_order"),
    ),
    Command(
        "reset_in_between",
        Toggle(),
        "Forget n-grams of earlier answers.",
        ("drafter.reset_in_between",),
    ),
    Command("cache", Toggle(), "The K/V cache, which is always on here."),
    Command("target", Toggle(), "Answer plainly too, and tell the ratio.", ("target",)),
    Command("ngram", Toggle(), "Answer with n-grams too, and tell the ratio.", ("ngram",)),
    Command("compare", Pair(), "The last message with two settings, side by side."),
    Command("debug", Toggle(), "Every step: accepted, rejected, the model's own.", ("debug",)),
    Command("stats", Argument(), "Figures over all answers, and the context."),
    Command("save", File(), "Write conversation and settings to a JSON file."),
    Command("load", File(), "Go on with what was saved."),
)
"""All commands, in the order of /help."""

BY_NAME: Mapping[str, Command] = {command.name: command for command in TABLE}

_OF_FLAG = {
    path.rpartition(".")[2].replace("_", "-"): command.name
    for command in TABLE
    for path in command.paths
}


def split(line: str) -> tuple[Command, str]:
    """The command of a line such as `/length  64`, and the text behind it.

    Raises:
        UsageError: there is no such command.
    """
    name, _, rest = line.strip().lstrip("/").partition(" ")
    return find(name), " ".join(rest.split())


def find(name: str) -> Command:
    """A command by its name, in any case and with `-` for `_`; raises UsageError."""
    wanted = name.lower().replace("-", "_")
    if wanted in BY_NAME:
        return BY_NAME[wanted]
    near = [n for n in BY_NAME if wanted and n.startswith(wanted)]
    near += get_close_matches(wanted, BY_NAME, n=1)
    guess = f"did you mean /{near[0]}? " if near else ""
    raise UsageError(f"/{name} is not a command", f"{guess}/help lists them all")


def one_line(error: TrtlaError) -> str:
    """An error as the chat shows it: flags in its hint become commands, but for those of builds."""
    clauses = (error.hint or "").split(", ")
    hint = ", ".join(c if "build" in c else _FLAG.sub(_as_command, c) for c in clauses)
    return " ".join(f"{error.message}{'; ' if hint else ''}{hint}".split())


def _as_command(match: re.Match[str]) -> str:
    name = _OF_FLAG.get(match[1], match[1])
    return f"/{name}" if name in BY_NAME else match[0]
