"""All settings of a chat in one frozen value: how answers are decoded and what is shown beside.

A setting is named by its path, `chat` or `sampling.seed`: commands and saved files use these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from trtla.errors import UsageError
from trtla.settings.drafting import (
    DRAFT_PREFIX,
    DRAFTERS,
    LOOKAHEAD,
    NO_DRAFTER,
    DrafterSettings,
    parse_drafter,
)
from trtla.settings.fields import Declared
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead
from trtla.settings.sampling import EXAMPLES, VALUES, Filters, SamplingParams, parse_processor
from trtla.settings.value_types import LookaheadType, ValueType, starting

_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What the slash commands change."""

    sampling: SamplingParams = _SAMPLING
    drafter: DrafterSettings = LOOKAHEAD
    lookahead: Lookahead | None = None
    """None: the default triple."""
    speculative: bool = True
    """False answers plainly, whatever drafts otherwise."""
    target: bool = False
    """Decode each answer once more without drafts, and compare the speed."""
    ngram: bool = False
    """Likewise with n-grams."""
    chat: bool = True
    """Use the chat template, where there is one."""
    debug: bool = False

    @property
    def plain(self) -> ChatSettings:
        """Without drafts."""
        return replace(self, drafter=NO_DRAFTER, lookahead=AUTOREGRESSIVE)

    @property
    def by_ngrams(self) -> ChatSettings:
        """With n-gram drafts."""
        drafter = replace(self.drafter, drafter=("ngram",), egag=False, rejection=False)
        return replace(self, drafter=drafter, lookahead=None)

    @property
    def answering(self) -> ChatSettings:
        """As answers are decoded."""
        return self if self.speculative else self.plain


PARTS: dict[str, Any] = {"sampling": SamplingParams, "drafter": DrafterSettings}
"""The classes of settings in `ChatSettings`, by their fields."""


def read(settings: ChatSettings, path: str) -> Any:
    """The value of one setting."""
    part, _, name = path.rpartition(".")
    return getattr(getattr(settings, part) if part else settings, name)


def changed(settings: ChatSettings, values: Mapping[str, Any]) -> ChatSettings:
    """The settings with other values at some paths, all at once.

    Raises:
        UsageError: a value is out of its range, or values do not go together.
    """
    by_part: dict[str, dict[str, Any]] = {part: {} for part in ("", *PARTS)}
    for path, value in values.items():
        part, _, name = path.rpartition(".")
        by_part[part][name] = value
    own = by_part.pop("")
    inner = {part: replace(getattr(settings, part), **new) for part, new in by_part.items() if new}
    return replace(settings, **inner, **own)


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
        return kind.lower(), WHOLE.convert(order, param, ctx)

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


TOGGLE = Toggle()
WHOLE = Number(click.INT, "N")
REAL = Number(click.FLOAT, "X")
TRIPLE = Triple()
DRAFTER = Drafter()
PROCESSOR = Processor()
STORAGE = Storage()
FILE = File()
PAIR = Pair()


def type_of(one: Declared) -> SettingType:
    """The type of a setting: what the chat takes for it."""
    if one.choices:
        return Choice(one.choices)
    if one.type is bool:
        return TOGGLE
    plain = REAL if one.type is float else WHOLE
    word = (one.option.shown or "none").lstrip("-")
    return Number(plain.inner, f"{plain.name}|{word}", word) if one.optional else plain
