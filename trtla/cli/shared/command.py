"""click's commands with sections, examples, and flags that take several values.

`--input-text A B C`, as TensorRT-LLM's run.py takes it, is rewritten to the flag repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from trtla.cli.shared.params import (
    Given,
    ModelArgument,
    ModelPath,
    Setting,
    Several,
)
from trtla.cli.shared.presets import load_config
from trtla.cli.shared.upstream import (
    UpstreamOption,
    translate_values,
    upstream_options,
)
from trtla.console import Console
from trtla.errors import UsageError
from trtla.other_tools import of_one_dash
from trtla.settings.upstream.option import Program

ALL = "trtla.all"  # ctx.meta's key: the help shows all options
_SPEC = 34
"""Most columns of an option's names in the short help."""


class Command(click.Command):
    """A command with sections, examples, --config, --verbose and --quiet.

    `instead_of` is the program of TensorRT-LLM whose options it accepts as well."""

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
        self.params += [*(_config_flags() if config else []), *switches()]
        if self._basic():
            self.params.append(_switch("Show all options.", _show_all, "--help-all"))
        if instead_of is not None:
            known = [name for param in self.params for name in (*param.opts, *param.secondary_opts)]
            self.params += upstream_options(instead_of, known)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat flags that were given once for several values, then parse."""
        several = {
            _spelling(ctx, name): param
            for param in self.params
            if isinstance(param, Several | UpstreamOption) and param.multiple
            for name in param.opts
        }
        words = {
            name: param.flag.words
            for param in self.params
            if isinstance(param, UpstreamOption) and param.flag.words
            for name in param.opts
        }
        args = list(_with_values(args, words, lambda flag: _spelling(ctx, flag)))
        dashed = [arg if arg.startswith("-") else "" for arg in args]
        if wrong := of_one_dash(dashed, lambda flag: _spelling(ctx, flag) in self._taking()):
            raise click.NoSuchOption(wrong, ctx=ctx)
        try:
            left = super().parse_args(ctx, list(_repeat_flags(ctx, args, several)))
        except click.UsageError as error:  # click's parser does not always name the command
            error.ctx = error.ctx or ctx
            raise
        for param in self.params:
            if isinstance(param, ModelArgument | UpstreamOption):
                param.hand_over(ctx)
        if self.instead_of is not None:
            translate_values(self.instead_of, ctx)
        return left

    def invoke(self, ctx: click.Context) -> Any:
        """Find the models, now that all other values are checked, then run the command."""
        for param in self.params:
            value = ctx.params.get(str(param.name))
            if isinstance(param.type, ModelPath) and value is not None:
                from trtla.cli.shared.model import model_at

                ctx.params[str(param.name)] = str(model_at(value).path)
        try:
            return super().invoke(ctx)
        except UsageError as error:
            where = Given(ctx).origin(error.setting) if error.setting in ctx.params else ""
            if where:
                raise error.within("", where) from None
            raise

    def _taking(self) -> set[str]:
        """The flags that take a value."""
        options = (param for param in self.params if isinstance(param, click.Option))
        return {name for option in options if not option.is_flag for name in option.opts}

    def _basic(self) -> list[click.Option]:
        """The options of --help; empty: all."""
        return [param for param in self.params if isinstance(param, Setting) and param.basic]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the basic options, a sentence each; with --help-all the whole help."""
        basic = [option for option in self._basic() if not option.hidden]
        if not basic or ctx.meta.get(ALL):
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self.short_help or "")
        with formatter.section("Options"):
            basic = [option for section in by_section(basic).values() for option in section]
            records = [option.get_help_record(ctx) for option in basic]
            specs = [record[0] for record in records if record]
            shorts = [_sentence(option.help) for option in basic]
            formatter.write_dl(list(zip(specs, shorts, strict=True)), col_max=_SPEC)
        examples = [example for example in self.examples if "\n" not in example]
        write_lines(formatter, "Examples", examples[:2])
        formatter.write_paragraph()
        count = sum(isinstance(p, click.Option) and not p.hidden for p in self.params)
        formatter.write_text(f"--help-all shows all {count} options.")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, options in by_section(self.get_params(ctx)).items():
            records = [record for option in options if (record := option.get_help_record(ctx))]
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
    """Options by section, in order of their first options; output options come last."""
    sections: dict[str, list[click.Option]] = {}
    for param in params:
        if isinstance(param, click.Option) and not param.hidden:
            sections.setdefault(getattr(param, "section", "Options"), []).append(param)
    for name in ("Output", "Options"):
        if name in sections:
            sections[name] = sections.pop(name)
    return sections


def _sentence(text: str | None) -> str:
    first, stop, _ = (text or "").partition(". ")
    return first + stop.strip()


def write_lines(formatter: click.HelpFormatter, title: str, lines: Sequence[str]) -> None:
    """Write a section of lines that are not wrapped, so that they can be copied."""
    if lines:
        with formatter.section(title):
            for line in lines:
                formatter.write(" " * formatter.current_indent + line + "\n")


def _spelling(ctx: click.Context, flag: str) -> str:
    """A flag in the spelling that click compares (`--input_text` -> `--input-text`)."""
    normalize = ctx.token_normalize_func
    prefix = flag[: len(flag) - len(flag.lstrip("-"))]
    return prefix + (normalize(flag.lstrip("-")) if normalize else flag.lstrip("-"))


def _with_values(
    args: Sequence[str], words: Mapping[str, Sequence[str]], spell: Callable[[str], str]
) -> Iterator[str]:
    """The arguments, with `true` behind each of TensorRT-LLM's options that has no value.

    Args:
        words: the values that such an option may have, by its name.
    """
    ended = False
    waiting: str | None = None
    for arg in args:
        if waiting is not None:
            joined = arg.lower() in words[spell(waiting)]
            yield f"{waiting}={arg if joined else 'true'}"
            waiting = None
            if joined:
                continue
        ended = ended or arg == "--"
        if not ended and arg.startswith("-") and spell(arg) in words:
            waiting = arg
        else:
            yield arg
    if waiting is not None:
        yield f"{waiting}=true"


def _repeat_flags(
    ctx: click.Context, args: Sequence[str], several: Mapping[str, click.Parameter]
) -> Iterator[str]:
    """`--flag A B` -> `--flag A --flag B`; B must not start with `-`, but may be `-` (stdin)."""
    current: click.Parameter | None = None  # the flag whose values follow
    first = False  # the next value is the one that click takes anyway, whatever it looks like
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
            joint = current.joint if isinstance(current, UpstreamOption) else ""
            yield f"{current.opts[-1]}={joint}{arg}"
        else:
            yield arg


def _config_flags() -> list[click.Parameter]:
    """--config, and the name that it had in trtllm-serve and trtllm-bench."""
    eager: dict[str, Any] = {"is_eager": True, "expose_value": False, "callback": load_config}
    return [
        Setting(
            ["--config"],
            type=click.Path(dir_okay=False),
            metavar="PRESET.yaml",
            help="Settings from a YAML file, keys as the long flags with underscores or as in "
            "trtllm-serve's. A flag wins over the environment, the environment over this file.",
            **eager,
        ),
        Setting(["--extra-llm-api-options"], type=click.Path(dir_okay=False), hidden=True, **eager),
    ]


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
