"""TensorRT-LLM's options on the commands here, as the table of its programs declares them.

They are hidden: the help has the command's own flags, docs/migrate-from-tensorrt-llm.md has these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click
from click.core import ParameterSource

from trtla.cli.shared.params import Setting, hand_over
from trtla.cli.shared.values import TEXT
from trtla.console import Console
from trtla.errors import UsageError
from trtla.settings.fields import flag_name
from trtla.settings.passed_on import Group, read
from trtla.settings.upstream.option import (
    OFF,
    ON,
    Accepted,
    Needless,
    PassedOn,
    Program,
    Refused,
    Theirs,
)

_TAKEN = "trtla.upstream"  # ctx.meta's key of the options that were given, by name
_PASSED = "trtla.passed_on"  # of the settings for TensorRT-LLM


class TheirOption(Setting):
    """An option of TensorRT-LLM's that has another name here, or none."""

    def __init__(self, names: Sequence[str], theirs: Theirs, passing: Group | None) -> None:
        many = theirs.takes == "several"
        flags = [names[0].replace("-", "_"), *map(flag_name, names)]
        super().__init__(flags, hidden=True, type=TEXT, multiple=many, show_default=False)
        self.theirs, self.passing = theirs, passing

    @property
    def is_switch(self) -> bool:
        return self.theirs.takes == "switch"

    def hand_over(self, ctx: click.Context) -> None:
        """Do what the table says with the value that was parsed."""
        name = str(self.name)
        value, where = ctx.params.pop(name), ctx.get_parameter_source(name)
        if value in (None, ()) or ctx.resilient_parsing:
            return
        texts = list(value) if self.multiple else [value]
        if self.is_switch and texts[0].lower() not in (*ON, *OFF):
            raise self._wrong(texts[0], "is not true or false", "omit the value")
        ctx.meta.setdefault(_TAKEN, {})[self.theirs.name] = texts[-1]
        fate = self.theirs.fate
        if isinstance(fate, Accepted):
            self._accept(ctx, fate, texts, where)
        elif isinstance(fate, PassedOn):
            self._pass_on(ctx, fate, ",".join(texts))
        else:
            self._refuse(ctx, fate, texts)

    def _wrong(self, value: str, why: str, hint: str) -> UsageError:
        return UsageError(f"{self.opts[0]} {value} {why}", hint)

    def _accept(
        self, ctx: click.Context, fate: Accepted, texts: list[str], where: ParameterSource | None
    ) -> None:
        if self.is_switch and texts[0].lower() in OFF:
            return
        name = fate.setting or self.theirs.name
        target = next(one for one in ctx.command.params if one.name == name)
        texts = [fate.gives] if fate.gives else [fate.values.get(one, one) for one in texts]
        value: Any = True
        if not getattr(target, "is_flag", False):
            found = [target.type(text, self, ctx) for text in texts]
            value = tuple(found) if target.multiple else found[-1]
        hand_over(ctx, str(self.name), name, value, where, weak=fate.weak)

    def _pass_on(self, ctx: click.Context, fate: PassedOn, value: str) -> None:
        pair = f"{fate.setting}={value}"
        if self.passing is not None and fate.setting in self.passing.kinds:
            try:
                read(self.passing, [pair])
            except UsageError as error:
                wrong = error.message.partition("=")[2]
                hint = error.hint or "omit it to have TensorRT-LLM's default"
                raise UsageError(f"{self.opts[0]} {wrong}", hint) from None
        ctx.meta.setdefault(_PASSED, []).append(pair)

    def _refuse(self, ctx: click.Context, fate: Needless | Refused, texts: list[str]) -> None:
        value = " ".join(texts)
        if isinstance(fate, Needless):
            if fate.values and value.lower() not in fate.values:
                raise self._wrong(value, fate.why, fate.hint)
            console = ctx.find_object(Console)
            if fate.aloud and console is not None:
                console.note(f"note: {self.opts[0]} has no effect: {fate.note}")
        elif not self.theirs.is_default(value):
            raise UsageError(f"{self.opts[0]} {fate.why}", fate.hint)


def their_options(program: Program, known: Iterable[str]) -> Iterator[TheirOption]:
    """The options of a program whose names a command does not have; `known`: its own flags."""
    own = set(known)
    for one in program.options:
        if missing := [name for name in one.names if flag_name(name) not in own]:
            yield TheirOption(missing, one, program.passing)


def their_values(program: Program, ctx: click.Context) -> None:
    """Exchange values of settings with the same name in both that mean something else here."""
    for one in program.options:
        fate, value = one.fate, ctx.params.get(one.name)
        if isinstance(fate, Accepted) and fate.values and isinstance(value, float):
            for theirs, ours in fate.values.items():
                if value == float(theirs):
                    ctx.params[one.name] = float(ours)


def with_values(
    args: Sequence[str], switches: Iterable[str], spell: Callable[[str], str]
) -> Iterator[str]:
    """The arguments, a value behind each of TensorRT-LLM's switches: true, if it has none."""
    names, ended = set(switches), False
    waiting: str | None = None
    for arg in args:
        if waiting is not None:
            joined = arg.lower() in _WORDS
            yield f"{waiting}={arg if joined else 'true'}"
            waiting = None
            if joined:
                continue
        ended = ended or arg == "--"
        if not ended and arg.startswith("-") and spell(arg) in names:
            waiting = arg
        else:
            yield arg
    if waiting is not None:
        yield f"{waiting}=true"


_WORDS = ("true", "false")


def taken(ctx: click.Context) -> dict[str, str]:
    """The options of TensorRT-LLM's that were given by their own names, with their values."""
    found: dict[str, str] = ctx.meta.get(_TAKEN, {})
    return found


def passed_on(
    ctx: click.Context, *, trtllm: Callable[[], bool], own: Sequence[str] = ()
) -> tuple[str, ...]:
    """The settings that go to TensorRT-LLM; on torch, as `trtllm` says, none, and a note.

    Args:
        own: settings that the command has itself, and that have no effect on torch either.
    """
    found = tuple(ctx.meta.get(_PASSED, ()))
    if not (found or own) or trtllm():
        return found
    passed = (pair.partition("=")[0].rpartition(".")[2] for pair in found)
    names = ", ".join((*own, *passed))
    ctx.ensure_object(Console).note(f"note: {names}: for TensorRT-LLM, no effect on torch engines")
    return ()
