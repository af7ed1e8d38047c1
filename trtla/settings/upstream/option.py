"""The types of the table of TensorRT-LLM's options: an option, and how trtla treats it.

An option is accepted, passed on to TensorRT-LLM, needless, or refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from trtla.settings.trtllm_fields import Group

Takes = Literal["value", "switch", "several", "lists"]
OFF = ("false", "disable", "off", "no", "0", "f")
ON = ("true", "enable", "on", "yes", "1", "t")
"""Values that a switch may have, though it needs none."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A setting of the command here."""

    setting: str = ""
    """The setting's name; empty: the option's own."""
    note: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values that have other names here."""
    gives: str = ""
    """The value that a switch stands for, where the setting is no switch."""
    weak: bool = False
    """The setting's own flag takes precedence over it."""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """Passed on to TensorRT-LLM; no effect on torch engines."""

    setting: str
    """The name in `trtla.settings.trtllm_fields`."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Needless:
    """Accepted without effect."""

    note: str
    values: tuple[str, ...] = ()
    """Values without effect; empty: all of them."""
    why: str = ""
    """Why other values are refused; follows the option and its value."""
    hint: str = ""
    aloud: bool = False
    """The command prints the note."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not available here; its default is accepted."""

    why: str
    """The rest of a sentence that begins with the option."""
    hint: str


Fate = Accepted | PassedOn | Needless | Refused


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a program."""

    name: str
    fate: Fate
    default: str = ""
    """As in its help; empty: none, or off."""
    takes: Takes = "value"
    also: tuple[str, ...] = ()
    """Other names of it in the program."""
    short: str = ""
    """Its short form, such as `-sq`."""
    bare: str = ""
    """The value that it has when it is given without one."""
    choices: tuple[str, ...] = ()
    """All values that the program takes; empty: any."""
    since: str = ""
    """The first release that has it; empty: 0.20 or before."""
    until: str = ""
    """The last release that has it; empty: 1.2 or later."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)

    def is_default(self, value: str) -> bool:
        """Return True for the value that the program takes without the option."""
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
    options: tuple[Flag, ...]
    passing: Group | None = None
    """The settings that the command passes on to TensorRT-LLM."""


def switch(name: str, fate: Fate) -> Flag:
    """An option without a value."""
    return Flag(name, fate, takes="switch")


def several(name: str, fate: Fate) -> Flag:
    """An option with several values."""
    return Flag(name, fate, takes="several")


def lists(name: str, fate: Fate) -> Flag:
    """An option with several values, whose every use begins another list."""
    return Flag(name, fate, takes="lists")


def each(names: str, fate: Fate, default: str = "", takes: Takes = "value") -> Iterator[Flag]:
    """Options that share everything but their names."""
    return (Flag(name, fate, default, takes) for name in names.split())


LOG_LEVEL = Needless(
    "`--verbose` shows more, `--quiet` less",
    ("internal_error", "error", "warning", "info", "verbose", "debug", "trace"),
    "is no level of TensorRT-LLM's logger",
    "omit it; --verbose shows more, --quiet less",
)
