"""Parameters of commands: options with sections, models without a flag, and where values came from.

Precedence: flag > environment TRTLA_<COMMAND>_<OPTION> > --config > the engine's value > default.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from trtla.errors import UsageError, flag_name


class Setting(click.Option):
    """An option with its section in the help.

    `basic`: --help shows it too. `alias`: another name, which no help shows."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        section: str = "Options",
        basic: bool = False,
        alias: str = "",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("show_default", True)
        super().__init__([*names, *([flag_name(alias)] if alias else [])], **kwargs)
        self.section, self.basic, self.alias = section, basic, alias

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy(self)
        shown.opts = [name for name in self.opts if name != flag_name(self.alias)]
        return super(Setting, shown).get_help_record(ctx)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value, prefix = super().resolve_envvar_value(ctx), ctx.auto_envvar_prefix
        if value is None and self.alias and prefix:
            return os.environ.get(f"{prefix}_{self.alias.upper()}") or None
        return value


def hand_over(
    ctx: click.Context,
    name: str,
    now: str,
    value: Any,
    where: ParameterSource | None,
    *,
    weak: bool = False,
) -> None:
    """Give a setting the value of its name in TensorRT-LLM; refuse two values from one source,
    unless that name is `weak`."""
    rank, other = _precedence(where), _precedence(ctx.get_parameter_source(now))
    if rank == len(_SOURCES):
        return
    if rank == other and value != ctx.params[now] and not weak:
        both = f"{name} is {value} and {now} is {ctx.params[now]}"
        raise UsageError(f"{both}, and both are names of one setting", "give one of them")
    if rank < other:
        ctx.params[now] = value
        ctx.set_parameter_source(now, _SOURCES[rank])


_SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def _precedence(source: ParameterSource | None) -> int:
    return _SOURCES.index(source) if source in _SOURCES else len(_SOURCES)


class Several(Setting):
    """An option that takes several values after one flag, and may be repeated too."""

    def __init__(self, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(names, multiple=True, **kwargs)


class ModelPath(click.Path):
    """A model: its folder, a GGUF file or a name on the hub; the command gets a folder."""


class ModelArgument(click.Argument):
    """A model without a flag becomes the value of -m; `needed`: one of both must be given."""

    def __init__(self, *args: Any, needed: bool = False, **kwargs: Any) -> None:
        kwargs |= {"type": click.Path(), "required": False}
        super().__init__(*args, **kwargs)
        self.needed = needed

    def hand_over(self, ctx: click.Context) -> None:
        """Give the parsed value to the flag."""
        option = next(param for param in ctx.command.params if "-m" in param.opts)
        name = str(option.name)
        value, flag = ctx.params.pop(str(self.name)), ctx.params[name]
        by_flag = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if value is not None and by_flag and value != flag:
            prompts = any("-p" in param.opts for param in ctx.command.params)
            raise UsageError(
                f"two models are named: {flag or repr(flag)} and {value}",
                "name one, without a flag or with -m" + prompts * "; a prompt is given with -p",
            )
        if value is not None:
            ctx.params[name] = value
            ctx.set_parameter_source(name, ParameterSource.COMMANDLINE)
        elif flag is None and self.needed and not ctx.resilient_parsing:
            raise click.MissingParameter(ctx=ctx, param=option)


PRESET = "trtla.preset"
"""The key of the path of --config in click's `Context.meta`."""


@dataclass(frozen=True, slots=True)
class Given:
    """The places that a command's values came from."""

    context: click.Context

    def source(self, name: str) -> str:
        """The place of a value: flag, environment NAME, config FILE or default."""
        named: dict[ParameterSource | None, str] = {
            ParameterSource.COMMANDLINE: "flag",
            ParameterSource.ENVIRONMENT: (
                f"environment {self.context.auto_envvar_prefix}_{name.upper()}"
            ),
            ParameterSource.DEFAULT_MAP: f"config {self.context.meta.get(PRESET, '')}".rstrip(),
        }
        return named.get(self.context.get_parameter_source(name), "default")

    def sources(self, *names: str) -> dict[str, str]:
        """The places of several values."""
        return {name: self.source(name) for name in names}

    def by_flag(self, name: str) -> bool:
        """Return True if the value is on the command line."""
        return self.source(name) == "flag"

    def explicit(self, name: str) -> bool:
        """Return True if the value is given anywhere."""
        return self.source(name) != "default"

    def origin(self, name: str) -> str:
        """The place of a bad value as the end of its error; empty for a flag."""
        where = self.source(name)
        return f" (from {where})" if where.startswith(("environment", "config")) else ""
