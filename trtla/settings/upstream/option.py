"""The types of the table of TensorRT-LLM's options: an option, and how trtla treats it.

An option is accepted, passed on to TensorRT-LLM, needless, or refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from trtla.settings.trtllm_fields import OFF, ON, Group


@dataclass(frozen=True, slots=True)
class Accepted:
    """A setting of the command that has another name there."""

    setting: str
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


@dataclass(frozen=True, slots=True)
class Needless:
    """Accepted without effect."""

    values: tuple[str, ...] = ()
    """Values without effect, all others are refused; empty: all of them."""
    hint: str = "omit it"
    note: str = ""
    """Printed, where the value would have an effect there."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not available here; its default is accepted."""

    why: str = "is not available here"
    """The rest of a sentence that begins with the option and its value."""
    hint: str = "omit it"


Fate = Accepted | PassedOn | Needless | Refused


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a program."""

    names: tuple[str, ...]
    """Its own, and others of it in the program; a short form such as `-sq` too."""
    fate: Fate
    default: str = ""
    """As in its help; empty: none, or off."""
    takes: str = ""
    """"!": no value; "?": one, or none for true; "+": several; "*": several, where every use begins
    another list; empty: one."""

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def words(self) -> tuple[str, ...]:
        """The values that it may have though it needs none; empty: it needs one."""
        return {"!": ("true", "false"), "?": (*ON, *OFF)}.get(self.takes, ())

    def is_default(self, value: str) -> bool:
        """Return True for the value that the program takes without the option."""
        if self.takes == "!":
            return value.lower() in OFF
        with suppress(ValueError):
            return bool(self.default) and float(value) == float(self.default)
        return value.lower() in (self.default.lower(), "none")


@dataclass(frozen=True, slots=True)
class Program:
    """One of TensorRT-LLM's programs, and the command that takes its place.

    Options that the command has by the same name are not listed.
    """

    name: str
    command: str
    listed: tuple[Flag, ...]
    passing: Group | None = None
    """The settings that the command passes on to TensorRT-LLM."""
    values: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    """Numbers of settings with the same name that mean something else here."""

    @property
    def options(self) -> tuple[Flag, ...]:
        """Those listed, and every setting that is passed on, by the last part of its name."""
        known = {name for option in self.listed for name in option.names}
        kinds = {} if self.passing is None else self.passing.kinds
        passed = {name.rpartition(".")[2]: name for name in kinds}
        takes = {"bool": "?", "ints": "+"}
        return self.listed + tuple(
            Flag((short,), PassedOn(name), takes=takes.get(str(kinds[name]), ""))
            for short, name in passed.items()
            if short not in known
        )


def table(rows: Mapping[str, Fate]) -> tuple[Flag, ...]:
    """The options of rows: names with commas between, what they take, and `=` with the default."""
    return tuple(_flag(entry, fate) for names, fate in rows.items() for entry in names.split())


def _flag(entry: str, fate: Fate) -> Flag:
    spelling, _, default = entry.partition("=")
    names = spelling.rstrip("!?+*")
    return Flag(tuple(names.split(",")), fate, default, spelling[len(names) :])
