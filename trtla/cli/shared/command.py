"""click's commands with sections, examples, and flags that take several values.

`--input-text A B C`, as TensorRT-LLM's run.py takes it, is rewritten to the flag repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared.params import (
    AWAITED,
    Former,
    ModelArgument,
    ModelPath,
    Setting,
    Several,
    load_config,
    origin,
)
from trtla.cli.shared.upstream import TheirOption, their_options, their_values, with_values
from trtla.console import Console
from trtla.errors import UsageError
from trtla.settings.upstream.option import Program

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

ALL = "trtla.all"  # ctx.meta's key of whether the help has all options
_ONE_DASH = ("-cnv", "-hf", "-ngl")
"""Options of llama.cpp, which click takes for a letter's with a value."""
_SPEC = 34
"""Most columns of an option's names in the short help."""


class Command(click.Command):
    """A command with sections, examples, --config, --verbose and --quiet.

    `instead_of` is the program of TensorRT-LLM's whose options it takes as well."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        config: bool = True,
        instead_of: Program | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples, self.has_settings, self.instead_of = examples, config, instead_of
        self.params += [*([_config_flag()] if config else []), *switches()]
        if self._basic():
            self.params.append(_switch("Show all options.", _show_all, "--help-all"))
        if instead_of is not None:
            known = [name for param in self.params for name in param.opts]
            self.params += their_options(instead_of, known)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the flags that were given once for several values, then parse."""
        several = {
            _spelling(ctx, name): param.opts[-1]
            for param in self.params
            if isinstance(param, Several | TheirOption) and param.multiple
            for name in param.opts
        }  # by every spelling of a flag, its last one, which is the long one
        switches = [
            name
            for param in self.params
            if isinstance(param, TheirOption) and param.is_switch
            for name in param.opts
        ]
        args = list(with_values(args, switches, lambda flag: _spelling(ctx, flag)))
        if ctx.resilient_parsing:  # a shell asks what may come next
            ctx.meta[AWAITED] = self._awaited(ctx, args, several)
        try:
            left = super().parse_args(ctx, list(_repeat_flags(ctx, args, several)))
        except click.UsageError as error:  # click's parser does not always say of which command
            if wrong := next((arg for arg in args if arg in _ONE_DASH), None):
                raise click.NoSuchOption(wrong, ctx=ctx) from None
            error.ctx = error.ctx or ctx
            raise
        for param in self.params:
            if isinstance(param, Former | ModelArgument | TheirOption):
                param.hand_over(ctx)
        if self.instead_of is not None:
            their_values(self.instead_of, ctx)
        return left

    def invoke(self, ctx: click.Context) -> Any:
        """Find the models, now that all else is known to be right, then run the command."""
        for param in self.params:
            value = ctx.params.get(str(param.name))
            if isinstance(param.type, ModelPath) and value is not None:
                from trtla.cli.shared.model import model_at

                ctx.params[str(param.name)] = str(model_at(value).path)
        try:
            return super().invoke(ctx)
        except UsageError as error:  # of a setting: NAME is VALUE
            name = error.message.partition(" is ")[0]
            error.message += origin(ctx, name) if name in ctx.params else ""
            raise

    def _awaited(
        self, ctx: click.Context, args: Sequence[str], several: dict[str, str]
    ) -> click.Option | None:
        args = args[:-1] if args and args[-1] == "=" else args  # bash cuts `--flag=value` in three
        last = [*_repeat_flags(ctx, [*args, "value"], several)][-1]
        flag, behind, _ = last.partition("=value")
        if not behind:
            flag = _spelling(ctx, args[-1] if args else "")
        options = (param for param in self.params if isinstance(param, click.Option))
        return next((one for one in options if flag in one.opts and not one.is_flag), None)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        awaited = ctx.meta.get(AWAITED)
        if awaited is None or incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found: list[CompletionItem] = awaited.shell_complete(ctx, incomplete)
        return found

    def _basic(self) -> list[click.Option]:
        """What --help has; empty: all."""
        return [one for one in self.params if isinstance(one, Setting) and one.basic]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what is needed first, a sentence each; with --help-all all there is."""
        basic = [one for one in self._basic() if not one.hidden]
        if not basic or ctx.meta.get(ALL):
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self.short_help or "")
        with formatter.section("Options"):
            basic = [one for section in by_section(basic).values() for one in section]
            records = [one.get_help_record(ctx) for one in basic]
            specs = [record[0] for record in records if record]
            shorts = [_sentence(one.help) for one in basic]
            formatter.write_dl(list(zip(specs, shorts, strict=True)), col_max=_SPEC)
        write_lines(formatter, "Examples", [one for one in self.examples if "\n" not in one][:2])
        formatter.write_paragraph()
        count = sum(isinstance(one, click.Option) and not one.hidden for one in self.params)
        formatter.write_text(f"--help-all shows all {count} options.")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, options in by_section(self.get_params(ctx)).items():
            records = [record for one in options if (record := one.get_help_record(ctx))]
            with formatter.section(section):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_lines(formatter, "Examples", self.examples)
        if self.has_settings and (prefix := ctx.auto_envvar_prefix):
            first = next(str(p.name) for p in self.params if isinstance(p, click.Option))
            formatter.write_paragraph()
            formatter.write_text(
                f"Every option can be set as {prefix}_<OPTION> in the environment, such as "
                f"{prefix}_{first.upper()}."
            )


def by_section(params: Iterable[click.Parameter]) -> dict[str, list[click.Option]]:
    """Options by section, in the order of the first ones; what is printed comes last."""
    sections: dict[str, list[click.Option]] = {}
    for one in params:
        if isinstance(one, click.Option) and not one.hidden:
            sections.setdefault(getattr(one, "section", "Options"), []).append(one)
    for name in ("Output", "Options"):
        if name in sections:
            sections[name] = sections.pop(name)
    return sections


def _sentence(text: str | None) -> str:
    first, stop, _ = (text or "").partition(". ")
    return first + stop.strip()


def write_lines(formatter: click.HelpFormatter, title: str, lines: Sequence[str]) -> None:
    """A section of lines that are not wrapped: what can be copied stays in one piece."""
    if lines:
        with formatter.section(title):
            for line in lines:
                formatter.write(" " * formatter.current_indent + line + "\n")


def _spelling(ctx: click.Context, flag: str) -> str:
    """A flag in the spelling that click compares (`--input_text` -> `--input-text`)."""
    normalize = ctx.token_normalize_func
    prefix = flag[: len(flag) - len(flag.lstrip("-"))]
    return prefix + (normalize(flag.lstrip("-")) if normalize else flag.lstrip("-"))


def _repeat_flags(
    ctx: click.Context, args: Sequence[str], several: dict[str, str]
) -> Iterator[str]:
    """`--flag A B` -> `--flag A --flag B`; B must not start with `-`, but may be `-` (stdin)."""
    current: str | None = None  # the flag that further values belong to
    first = False  # whether the next value is the one click takes anyway, whatever it looks like
    for position, arg in enumerate(args):
        if first:
            first = False
            yield arg
        elif arg == "--":
            yield from args[position:]
            return
        elif arg.startswith("-") and arg != "-":
            name, equals, _ = arg.partition("=")
            current = several.get(_spelling(ctx, name))
            first = current is not None and not equals
            yield arg
        elif current is not None:
            yield f"{current}={arg}"
        else:
            yield arg


def _config_flag() -> Setting:
    return Setting(
        ["--config"],
        type=click.Path(dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=load_config,
        metavar="PRESET.yaml",
        help="Settings from a YAML file, keys as the long flags with underscores. "
        "A flag wins over the environment, the environment over this file.",
    )


def switches() -> list[click.Parameter]:
    """--verbose and --quiet, which the group and every command take."""
    return [
        _switch("Show tracebacks and details on stderr.", _remember, "-v", "--verbose"),
        _switch("Print results and errors only.", _remember, "-q", "--quiet"),
    ]


def _switch(about: str, callback: Callable[..., None], *names: str) -> Setting:
    eager: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
    return Setting(names, help=about, callback=callback, show_default=False, **eager)


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    console = ctx.find_object(Console)
    if value and console is not None and param.name:
        setattr(console, param.name, True)
    if value and param.name == "quiet":
        logging.getLogger("trtla").setLevel(logging.ERROR)


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
