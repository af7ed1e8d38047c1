"""TensorRT-LLM's options on trtla's commands, as the table of its programs declares them.

They are hidden: the help lists the command's own flags, docs/migrate-from-tensorrt-llm.md these.
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
from trtla.settings.trtllm_fields import OFF, ON, Group, read_value
from trtla.settings.upstream.option import Accepted, Flag, Needless, PassedOn, Program, Refused

_TAKEN = "trtla.upstream"  # ctx.meta's key of the given options, by name
_PASSED = "trtla.passed_on"  # ctx.meta's key of settings for TensorRT-LLM
_LISTS = "trtla.lists"  # ctx.meta's key of the lists of options with one for each prompt
_NEXT = "\0"
"""The beginning of a value that continues a list; no argument of a program has this character."""


class UpstreamOption(Setting):
    """An option of TensorRT-LLM that has another name here, or none."""

    def __init__(self, names: Sequence[str], flag: Flag, passing: Group | None) -> None:
        long = [name for name in names if not name.startswith("-")]
        flags = [long[0].replace("-", "_"), *map(flag_name, long), *set(names).difference(long)]
        many = flag.takes in ("+", "*")
        super().__init__(flags, hidden=True, type=TEXT, multiple=many, show_default=False)
        self.flag, self.passing = flag, passing

    @property
    def joint(self) -> str:
        """The beginning of its values that continue a list."""
        return _NEXT if self.flag.takes == "*" else ""

    def hand_over(self, ctx: click.Context) -> None:
        """Treat the parsed value as the table declares."""
        name = str(self.name)
        value, where = ctx.params.pop(name), ctx.get_parameter_source(name)
        if value in (None, ()) or ctx.resilient_parsing:
            return
        texts, fate = list(value) if self.multiple else [value], self.flag.fate
        if self.flag.takes == "!" and texts[0].lower() not in (*ON, *OFF):
            raise UsageError(f"{self.opts[0]} {texts[0]} is not true or false", "omit the value")
        if self.flag.takes == "*" and isinstance(fate, Accepted):
            self._keep_lists(ctx, fate, texts, where)
            return
        ctx.meta.setdefault(_TAKEN, {})[self.flag.name] = texts[-1]
        if isinstance(fate, Accepted):
            self._accept(ctx, fate, texts, where)
        elif isinstance(fate, PassedOn):
            self._pass_on(ctx, fate, ",".join(texts))
        else:
            self._refuse(ctx, fate, " ".join(texts))

    def _accept(
        self, ctx: click.Context, fate: Accepted, texts: list[str], where: ParameterSource | None
    ) -> None:
        if self.flag.takes == "!" and texts[0].lower() in OFF:
            return
        target = next(param for param in ctx.command.params if param.name == fate.setting)
        texts = [fate.gives] if fate.gives else [fate.values.get(text, text) for text in texts]
        value: Any = True
        if not getattr(target, "is_flag", False):
            converted = [target.type(text, self, ctx) for text in texts]
            value = tuple(converted) if target.multiple else converted[-1]
        hand_over(ctx, str(self.name), fate.setting, value, where, weak=fate.weak)

    def _keep_lists(
        self, ctx: click.Context, fate: Accepted, texts: list[str], where: ParameterSource | None
    ) -> None:
        """One list is the setting's value; several are kept for the command."""
        lists: list[list[str]] = []
        for text in texts:
            if text.startswith(_NEXT):
                lists[-1].append(text.removeprefix(_NEXT))
            else:
                lists.append([text])
        if len(lists) == 1:
            self._accept(ctx, fate, lists[0], where)
            return
        if ctx.params[fate.setting]:
            raise UsageError(
                f"{self.opts[0]} is given {len(lists)} times beside {flag_name(fate.setting)}",
                "give one of them",
            )
        ctx.meta[_LISTS] = {self.flag.name: tuple(map(tuple, lists))}

    def _pass_on(self, ctx: click.Context, fate: PassedOn, value: str) -> None:
        pair = f"{fate.setting}={value}"
        if self.passing is not None and fate.setting in self.passing.kinds:
            read_value(f"{self.opts[0]} ", self.passing.kinds[fate.setting], value)
        ctx.meta.setdefault(_PASSED, []).append(pair)

    def _refuse(self, ctx: click.Context, fate: Needless | Refused, value: str) -> None:
        flag = self.opts[0] if self.flag.takes == "!" else f"{self.opts[0]} {value}"
        if isinstance(fate, Refused):
            if not self.flag.is_default(value):
                raise UsageError(f"{flag} {fate.why}", fate.hint)
        elif fate.values and value.lower() not in fate.values:
            raise UsageError(f"{flag} is none of {', '.join(fate.values)}", fate.hint)
        elif fate.note:
            ctx.ensure_object(Console).note(f"note: {flag} has no effect: {fate.note}")


def upstream_options(program: Program, known: Iterable[str]) -> Iterator[UpstreamOption]:
    """The options of a program whose names a command lacks; `known`: its own flags."""
    flags = set(known)
    for option in program.options:
        if missing := [name for name in option.names if flag_name(name) not in flags]:
            yield UpstreamOption(missing, option, program.passing)


def translate_values(program: Program, ctx: click.Context) -> None:
    """Replace values of settings with the same name in both that mean something else here."""
    for name, values in program.values.items():
        ctx.params[name] = values.get(ctx.params[name], ctx.params[name])


def upstream_values(ctx: click.Context) -> dict[str, str]:
    """The given options of TensorRT-LLM by their own names, with their values."""
    options: dict[str, str] = ctx.meta.get(_TAKEN, {})
    return options


def upstream_lists(ctx: click.Context, name: str) -> tuple[tuple[str, ...], ...]:
    """The lists of an option that was given several times; empty: it was not."""
    lists: dict[str, tuple[tuple[str, ...], ...]] = ctx.meta.get(_LISTS, {})
    return lists.get(name, ())


def trtllm_settings(
    ctx: click.Context, *, trtllm: Callable[[], bool], ignored: Sequence[str] = ()
) -> tuple[str, ...]:
    """The settings for TensorRT-LLM; on torch engines, where `trtllm` is False, none, and a note.

    Args:
        ignored: the command's own settings that have no effect on torch engines either.
    """
    pairs = tuple(ctx.meta.get(_PASSED, ()))
    if not (pairs or ignored) or trtllm():
        return pairs
    passed = (pair.partition("=")[0].rpartition(".")[2] for pair in pairs)
    names = ", ".join((*ignored, *passed))
    ctx.ensure_object(Console).note(f"note: {names}: for TensorRT-LLM, no effect on torch engines")
    return ()
