"""How the table of TensorRT-LLM's options is written: an option, and what becomes of it here.

An option is accepted, passed on to TensorRT-LLM, needless, or refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from trtla.settings.passed_on import Group

Takes = Literal["value", "switch", "several"]
OFF = ("false", "disable", "off", "no", "0", "f")
ON = ("true", "enable", "on", "yes", "1", "t")
"""The values that a switch may have, though it needs none."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """It is a setting of the command here."""

    setting: str = ""
    """The setting's name; empty: the option's own."""
    note: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values that have other names here."""
    gives: str = ""
    """The value that a switch stands for, where the setting is none."""
    weak: bool = False
    """Whether the setting's own flag wins over it."""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """It goes to TensorRT-LLM, and has no effect on torch engines."""

    setting: str
    """The name in `trtla.settings.passed_on`."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Needless:
    """It asks for nothing here."""

    note: str
    values: tuple[str, ...] = ()
    """Those that ask for nothing; empty: every one."""
    why: str = ""
    """Why the others are refused, behind the option and its value."""
    hint: str = ""
    aloud: bool = False
    """Whether the command prints the note."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be had here; its default asks for nothing and is taken."""

    why: str
    """The rest of a sentence that begins with the option."""
    hint: str


Fate = Accepted | PassedOn | Needless | Refused


@dataclass(frozen=True, slots=True)
class Theirs:
    """One option of a program."""

    name: str
    fate: Fate
    default: str = ""
    """As its help has it; empty: none, or off."""
    takes: Takes = "value"
    also: tuple[str, ...] = ()
    """Other names that the program takes for it."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)

    def is_default(self, value: str) -> bool:
        """Whether a value is what the program takes without it."""
        if self.takes == "switch":
            return value.lower() in OFF
        with suppress(ValueError):
            return bool(self.default) and float(value) == float(self.default)
        return value.lower() in (self.default.lower(), "none")


@dataclass(frozen=True, slots=True)
class Program:
    """One of TensorRT-LLM's programs, and the command that takes its place."""

    name: str
    command: str
    options: tuple[Theirs, ...]
    passing: Group | None = None
    """What hands its settings on to TensorRT-LLM."""


def switch(name: str, fate: Fate) -> Theirs:
    """An option without a value."""
    return Theirs(name, fate, takes="switch")


def several(name: str, fate: Fate) -> Theirs:
    """An option with several values."""
    return Theirs(name, fate, takes="several")


def each(names: str, fate: Fate, default: str = "", takes: Takes = "value") -> Iterator[Theirs]:
    """Options that share everything but their names."""
    return (Theirs(name, fate, default, takes) for name in names.split())


LOG_LEVEL = Needless(
    "`--verbose` shows more, `--quiet` less",
    ("internal_error", "error", "warning", "info", "verbose", "debug", "trace"),
    "is no level of TensorRT-LLM's logger",
    "omit it; --verbose shows more, --quiet less",
)
