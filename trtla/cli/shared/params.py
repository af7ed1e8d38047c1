"""The parameters of commands: options with sections and other names, and models without a flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from trtla.errors import UsageError, closest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

AWAITED = "trtla.awaited"  # ctx.meta's key of the flag that a shell is completing
_ENGINE = "engine_dir"


class Setting(click.Option):
    """An option with its section in the help; its default is shown.

    Args:
        basic: whether --help has it too, and not --help-all alone.
    """

    def __init__(
        self, *args: Any, section: str = "Options", basic: bool = False, **kwargs: Any
    ) -> None:
        kwargs.setdefault("show_default", True)
        super().__init__(*args, **kwargs)
        self.section, self.basic = section, basic

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What the shell is offered for the value."""
        from trtla.cli.shared.values import choices

        found = choices(self, ctx, incomplete)
        return super().shell_complete(ctx, incomplete) if found is None else found

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert the value; the error of a mistyped choice suggests the nearest one."""
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter as error:
            if isinstance(self.type, click.Choice) and isinstance(value, str):
                guess = closest(value, map(str, self.type.choices))
                if guess:
                    text = f"{error.message} Did you mean {guess!r}?"
                    raise click.BadParameter(text, ctx, self) from None
            raise


class Former(Setting):
    """Another name of a setting, such as a former one: hidden, taken where the setting is.

    Args:
        now: the setting that it sets where that is not given itself; None: it sets nothing.
    """

    def __init__(self, *args: Any, now: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, hidden=True, **kwargs)
        self.now = now

    def hand_over(self, ctx: click.Context) -> None:
        """Give the value that was parsed to the setting; refuse two values from one place."""
        name = str(self.name)
        value, given = ctx.params.pop(name), _precedence(ctx.get_parameter_source(name))
        if not self.now or given == len(_SOURCES):
            return
        other = _precedence(ctx.get_parameter_source(self.now))
        if given == other and value != ctx.params[self.now]:
            both = f"{name} is {value} and {self.now} is {ctx.params[self.now]}"
            raise UsageError(f"{both}, and both are names of one setting", "give one of them")
        if given < other:
            ctx.params[self.now] = value
            ctx.set_parameter_source(self.now, _SOURCES[given])


_SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def _precedence(source: ParameterSource | None) -> int:
    return _SOURCES.index(source) if source in _SOURCES else len(_SOURCES)


class Several(Setting):
    """An option that takes several values after one flag, and may be repeated too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, multiple=True, **kwargs)


class ModelPath(click.Path):
    """A model: its folder, a GGUF file or a name on the hub; the command gets a folder."""


class Positional(click.Argument):
    """A value without a flag; a shell that completes a flag's value is not offered this one's."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What the shell is offered."""
        awaited: click.Option | None = ctx.meta.get(AWAITED)
        if awaited is not None:
            return awaited.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)


class ModelArgument(Positional):
    """A model named without a flag: it becomes the value of --engine-dir.

    Args:
        needed: whether it must be given in one of both ways.
    """

    def __init__(self, *args: Any, needed: bool = False, **kwargs: Any) -> None:
        kwargs |= {"type": click.Path(), "required": False}
        super().__init__(*args, **kwargs)
        self.needed = needed

    def hand_over(self, ctx: click.Context) -> None:
        """Give the value that was parsed to the flag.

        Raises:
            UsageError: the flag names another model.
            click.MissingParameter: a model is needed, and none is named.
        """
        value, flag = ctx.params.pop(str(self.name)), ctx.params[_ENGINE]
        by_flag = ctx.get_parameter_source(_ENGINE) is ParameterSource.COMMANDLINE
        if value is not None and by_flag and value != flag:
            prompts = any("-p" in param.opts for param in ctx.command.params)
            raise UsageError(
                f"two models are named: {flag or repr(flag)} and {value}",
                "name one, without a flag or with -m" + prompts * "; a prompt is given with -p",
            )
        if value is not None:
            ctx.params[_ENGINE] = value
            ctx.set_parameter_source(_ENGINE, ParameterSource.COMMANDLINE)
        elif flag is None and self.needed and not ctx.resilient_parsing:
            option = next(param for param in ctx.command.params if param.name == _ENGINE)
            raise click.MissingParameter(ctx=ctx, param=option)
