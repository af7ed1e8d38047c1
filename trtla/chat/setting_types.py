"""What follows a slash command: how each kind of value is parsed, shown and completed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from trtla.errors import UsageError
from trtla.files import parse_json
from trtla.settings.drafting import DRAFT_PREFIX, DRAFTERS, parse_drafter
from trtla.settings.fields import Declared, check_text, shown
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.sampling import EXAMPLES, VALUES, Filters, parse_processor
from trtla.settings.value_types import BiasesType, LookaheadType, ValueType, starting

Param = click.Parameter | None
Context = click.Context | None

_STATES = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Known:
    """What completion can offer beside the fixed words."""

    triple: str = "7,7,7"
    draft_models: tuple[str, ...] = ()


class SettingType(ValueType):
    """The base of these types."""

    examples: Iterable[str] = ()
    """Values that completion offers."""

    def show(self, value: Any) -> str:
        """A value as it would be typed."""
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The examples that continue what is typed."""
        return starting(self.examples, incomplete)


class Toggle(SettingType):
    """`on` or `off`; None, for nothing typed, is the other one."""

    name, examples = "[on|off]", tuple(_STATES)

    def convert(self, value: str, param: Param, ctx: Context) -> bool | None:
        """The state."""
        if not value:
            return None
        if value.lower() not in _STATES:
            raise UsageError(f"{value!r} is neither on nor off", "nothing toggles")
        return _STATES[value.lower()]

    def show(self, value: Any) -> str:
        """`on` or `off`."""
        return "on" if value else "off"


class Number(SettingType):
    """A number of one of click's types; its range is checked by the settings.

    Args:
        name: how /help writes it.
        word: stands for None, if given.
    """

    def __init__(self, inner: Any, name: str, word: str | None = None) -> None:
        self.inner, self.name, self._word = inner, name, word

    def convert(self, value: str, param: Param, ctx: Context) -> Any:
        """The number."""
        return None if value.lower() == self._word else self.inner.convert(value, param, ctx)

    def show(self, value: Any) -> str:
        """Without zeros at the end."""
        if value is None:
            return str(self._word)
        return f"{value:g}" if isinstance(value, float) else str(value)


class Choice(SettingType):
    """One of some words."""

    def __init__(self, words: Iterable[str]) -> None:
        self.examples = tuple(words)
        self.name = "|".join(self.examples)

    def convert(self, value: str, param: Param, ctx: Context) -> str:
        """The word, which the settings check."""
        return value.lower()


class Colors(Choice):
    """What accepted tokens are tinted by."""

    def __init__(self) -> None:
        super().__init__(("accepted", "source"))

    def convert(self, value: str, param: Param, ctx: Context) -> str:
        """The word."""
        word = value.lower()
        if word not in self.examples:
            raise UsageError(f"{value!r} is not {' or '.join(self.examples)}")
        return word


class Texts(SettingType):
    """Texts: one as it is typed, or several in JSON's quotes with commas between."""

    name, examples = "TEXT|none", ("none",)

    def convert(self, value: str, param: Param, ctx: Context) -> Any:
        """The texts, which the settings check."""
        if value.lower() == "none":
            return ()
        if not value.startswith('"'):
            return (value,)
        try:
            return tuple(parse_json(f"[{value}]"))
        except ValueError:
            raise UsageError(
                f"{shown(value)} is not texts in quotes", 'write END, or "END", "\\n"'
            ) from None

    def show(self, value: Any) -> str:
        """In quotes, which keep blanks and newlines."""
        return ", ".join(json.dumps(text, ensure_ascii=False) for text in value) or "none"


class System(SettingType):
    """A system message; empty for `off`."""

    name, examples = "TEXT|off", ("off",)

    def convert(self, value: str, param: Param, ctx: Context) -> str:
        """The message as it was typed."""
        check_text(value, "the system message")
        return "" if value.lower() == "off" else value

    def show(self, value: Any) -> str:
        """In one line."""
        return " ".join(value.split()) or "off"


class Triple(LookaheadType, SettingType):
    """A lookahead triple, `auto` or `off`."""

    name = "W,N,G|auto|off"

    def convert(self, value: str, param: Param, ctx: Context) -> Any:
        """The triple; `off` is 1,1,0."""
        off = value.lower() == "off"
        return AUTOREGRESSIVE if off else super().convert(value.lower(), param, ctx)

    def show(self, value: Any) -> str:
        """As it would be typed."""
        return "off" if value == AUTOREGRESSIVE else "the default" if value is None else str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The default triple, and the words."""
        return starting((ctx.obj.triple, "auto", "off"), incomplete)


class Drafter(SettingType):
    """A drafter, or several with commas between."""

    name = "NAME,..."

    def convert(self, value: str, param: Param, ctx: Context) -> tuple[str, ...]:
        """The names, which the settings check."""
        if value.lower() in _STATES:
            raise UsageError(
                f"{value} is no drafter: this is no toggle, it names what drafts",
                f"use {', '.join(DRAFTERS)} or draft:PATH; /speculative switches drafting",
            )
        return parse_drafter(value)

    def show(self, value: Any) -> str:
        """The names with commas between."""
        return ",".join(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """A name after the last comma."""
        models = (DRAFT_PREFIX + path for path in ctx.obj.draft_models)
        return starting((*DRAFTERS, *models), incomplete, part=True)


class Processor(SettingType):
    """A processor and its values, separated by blanks or colons: (temperature, top_k, top_p)."""

    name, examples = "NAME [VALUE...]", tuple(one.replace(":", " ") for one in EXAMPLES)

    def convert(self, value: str, param: Param, ctx: Context) -> Filters:
        """The three filters."""
        return parse_processor(":".join(value.replace(":", " ").split())).filters

    def show(self, value: Any) -> str:
        """The shortest processor that means these filters."""
        temperature, top_k, top_p = value
        if temperature == 0:
            return "greedy"
        given = {"temperature": f"{temperature:g}"}
        given |= {"top_k": str(top_k)} if top_k else {}
        given |= {"top_p": f"{top_p:g}"} if top_p < 1 else {}
        sampled = {values: name for name, values in VALUES.items() if name != "greedy"}
        return " ".join([sampled[tuple(given)], *given.values()])


class Storage(SettingType):
    """The kind of n-gram storage and its order: (kind, order)."""

    name, examples = "KIND N", ("basic 3", "basic 4", "onelevel 3", "onelevel 4")

    def convert(self, value: str, param: Param, ctx: Context) -> tuple[str, int]:
        """Both."""
        kind, _, order = value.partition(" ")
        if not order:
            raise UsageError(f"{value!r} is not a kind and a number", "write basic 3 or onelevel 4")
        return kind.lower(), WHOLE.convert(order.strip(), param, ctx)

    def show(self, value: Any) -> str:
        """Both with a blank between."""
        return f"{value[0]} {value[1]}"


class File(SettingType):
    """A path."""

    name = "FILE"

    def convert(self, value: str, param: Param, ctx: Context) -> Path:
        """The path, `~` resolved."""
        if not value:
            raise UsageError("no file is named", "write a path, such as chat.json")
        try:
            return Path(value).expanduser()
        except RuntimeError:
            raise UsageError(f"{value} names a user that is not known", "write the path") from None

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The files and folders there."""
        folder, slash, name = incomplete.rpartition("/")
        try:
            entries = sorted(Path(folder + slash or ".").expanduser().iterdir())
        except (OSError, RuntimeError, ValueError):
            return []
        shown = (one for one in entries if name.startswith(".") or not one.name.startswith("."))
        paths = (f"{folder}{slash}{one.name}{'/' if one.is_dir() else ''}" for one in shown)
        return starting(paths, incomplete)


class Pair(SettingType):
    """Two settings with `|` between, each one or more commands with `;` between."""

    name = "A | B"

    def convert(self, value: str, param: Param, ctx: Context) -> tuple[str, str]:
        """Both sides as texts."""
        left, _, right = (part.strip() for part in value.partition("|"))
        if not left or not right or "|" in right:
            raise UsageError(
                f"{value!r} is not two settings with | between",
                "write lookahead 7,7,7 | drafter prompt-lookup",
            )
        return left, right


class Biases(BiasesType, SettingType):
    """Numbers of token ids."""

    name, examples = "ID:BIAS,...|none", ("none",)

    def show(self, value: Any) -> str:
        """The pairs with commas between."""
        return ",".join(f"{token}:{number:g}" for token, number in value) or "none"


TOGGLE = Toggle()
COLORS = Colors()
WHOLE = Number(click.INT, "N")
REAL = Number(click.FLOAT, "X")
TEXTS = Texts()
SYSTEM = System()
TRIPLE = Triple()
DRAFTER = Drafter()
PROCESSOR = Processor()
STORAGE = Storage()
FILE = File()
PAIR = Pair()


def type_of(one: Declared) -> SettingType:
    """The type of a setting: what the chat takes for it."""
    if one.is_texts:
        return TEXTS
    if one.is_biases:
        return Biases()
    if one.choices:
        return Choice(one.choices)
    if one.type is bool:
        return TOGGLE
    plain = REAL if one.type is float else WHOLE
    word = (one.option.shown or "none").lstrip("-")
    return Number(plain.inner, f"{plain.name}|{word}", word) if one.optional else plain
