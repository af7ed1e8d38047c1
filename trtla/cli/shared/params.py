"""Parameters of commands: options with sections, models without a flag, presets of --config.

Precedence: flag > environment TRTLA_<COMMAND>_<OPTION> > --config > the engine's value > default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from trtla.cli.shared.llm_args import as_preset
from trtla.cli.shared.values import ListType, TripleType
from trtla.errors import UsageError, closest, did_you_mean
from trtla.files import written
from trtla.settings.fields import flag_name, shown
from trtla.settings.grammar import SETTINGS as GRAMMARS
from trtla.settings.grammar import Grammar
from trtla.settings.sampling import Filters, parse_processor


class Setting(click.Option):
    """An option with its section in the help; `basic`: --help shows it too."""

    def __init__(
        self, *args: Any, section: str = "Options", basic: bool = False, **kwargs: Any
    ) -> None:
        kwargs.setdefault("show_default", True)
        super().__init__(*args, **kwargs)
        self.section, self.basic = section, basic

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert the value; the error of a mistyped choice suggests the nearest one."""
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter as error:
            known = self.type.choices if isinstance(self.type, click.Choice) else ()
            guess = closest(value, map(str, known)) if isinstance(value, str) else None
            if guess is None:
                raise
            text = f"{error.message} Did you mean {guess!r}?"
            raise click.BadParameter(text, ctx, self) from None


class Alias(Setting):
    """Another name of a setting: hidden, used where the setting is not given itself."""

    def __init__(self, *args: Any, now: str, **kwargs: Any) -> None:
        super().__init__(*args, hidden=True, **kwargs)
        self.now = now

    def hand_over(self, ctx: click.Context) -> None:
        """Give the parsed value to the setting; refuse two values from one source."""
        name = str(self.name)
        value = ctx.params.pop(name)
        hand_over(ctx, name, self.now, value, ctx.get_parameter_source(name))


def hand_over(
    ctx: click.Context,
    name: str,
    now: str,
    value: Any,
    where: ParameterSource | None,
    *,
    weak: bool = False,
) -> None:
    """Give a setting the value of its other name; refuse two values from one source, unless the
    other name is `weak`."""
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, multiple=True, **kwargs)


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


_CONFIG = "trtla.config"  # click's ctx.meta key of the preset's path
_SWITCHES = {"help", "help_all", "verbose", "quiet", "version"}
_NOT_IN_PRESETS = {"config", "extra_llm_api_options", *_SWITCHES}


def load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Callback of --config: make the preset's values the command's defaults."""
    if value is None:
        return
    if ctx.meta.get(_CONFIG, value) != value:
        raise UsageError(
            f"--config and --extra-llm-api-options name {ctx.meta[_CONFIG]} and {value}",
            "give one of them",
        )
    ctx.default_map = {**(ctx.default_map or {}), **flag_defaults(ctx, _read(Path(value)), value)}
    ctx.meta[_CONFIG] = value


def flag_defaults(ctx: click.Context, keys: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of a file as defaults of the command's flags; refuse an unknown key."""
    params = {p.name: p for p in ctx.command.params if p.name and p.name not in _NOT_IN_PRESETS}
    visible = [name for name, param in params.items() if not getattr(param, "hidden", False)]
    settings = as_preset(dict(keys), params, where, ctx.command_path)
    for key in settings:
        if key not in params:
            raise UsageError(
                f'{where} has the unknown key "{key}"',
                f"{did_you_mean(key, visible)}the keys of {ctx.command_path} are "
                f"{', '.join(sorted(visible))}",
            )
    values = {key: item for key, item in settings.items() if item is not None}
    return {key: _as_flag(params[key], item, where) for key, item in values.items()}


def _read(path: Path) -> dict[str, Any]:
    """Read a preset's settings; a mistyped path gets the most similar one as a hint."""
    from trtla.files import read_yaml

    try:
        return read_yaml(path)
    except UsageError as error:
        others = path.parent.glob("*.y*ml") if not path.exists() else ()
        guess = did_you_mean(str(path), map(str, others))
        raise UsageError(error.message, f"{guess}{error.hint or ''}".strip() or None) from None


def _as_flag(param: click.Parameter, value: Any, where: str) -> Any:
    """A YAML value as on the command line, so that the same types check both."""
    if isinstance(value, bool) and getattr(param, "is_flag", False):
        return value
    if isinstance(value, list) and isinstance(param.type, ListType):
        return ",".join(map(str, value))
    if isinstance(value, list):
        numbers = all(isinstance(item, int) for item in value)
        if isinstance(param.type, TripleType) and numbers and value:
            triple = ",".join(map(str, value))
            return [triple] if param.multiple else triple
        if param.multiple:
            return [",".join(map(str, i)) if isinstance(i, list) else str(i) for i in value]
    if isinstance(value, dict) and (param.metavar or "").endswith("JSON"):
        return json.dumps(value, default=str)
    if isinstance(value, list | dict):
        raise UsageError(
            f'{where}: "{param.name}" is {shown(value)}, not a single value',
            f"write one, as behind {param.opts[-1]}",
        )
    return [str(value)] if param.multiple else str(value)


def source(ctx: click.Context, name: str) -> str:
    """The source of a parameter's value: flag, environment NAME, config FILE or default."""
    named: dict[ParameterSource | None, str] = {
        ParameterSource.COMMANDLINE: "flag",
        ParameterSource.ENVIRONMENT: f"environment {ctx.auto_envvar_prefix}_{name.upper()}",
        ParameterSource.DEFAULT_MAP: f"config {ctx.meta.get(_CONFIG, '')}".rstrip(),
    }
    return named.get(ctx.get_parameter_source(name), "default")


def origin(ctx: click.Context, name: str) -> str:
    """The source of a bad value as the end of its error; empty for a flag's."""
    where = source(ctx, name)
    return f" (from {where})" if where.startswith(("environment", "config")) else ""


def sources(ctx: click.Context, *names: str) -> dict[str, str]:
    """`source` of several parameters."""
    return {name: source(ctx, name) for name in names}


def check_folder(path: Path, flag: str, *inputs: str | None) -> None:
    """Refuse a file to write that is a folder or an input, or whose folder is missing or read-only.

    Args:
        flag: names the file.
        inputs: paths that the command reads, if they are files.
    """
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder", f"give a file in it: {path / 'out'}")
    if any(
        name and path.exists() and Path(name).exists() and path.samefile(name) for name in inputs
    ):
        raise UsageError(f"{flag} {path} is also the input", "give another file")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} of {flag} does not exist", "make it first")
    if not path.exists():
        from tempfile import TemporaryFile

        with written(path, f"give another {flag}"), TemporaryFile(dir=path.parent):
            pass


def model_files(folder: str, *outputs: str) -> list[str]:
    """Return a model's path and its files, but those with the suffixes of outputs."""
    files = Path(folder).glob("*")
    return [folder, *(str(file) for file in files if file.suffix not in outputs)]


def check_new_file(path: Path, flag: str, *, force: bool) -> None:
    """Refuse a file whose folder is missing, or that exists and must not be replaced."""
    check_folder(path, flag)
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists already", f"add --force to replace it, or choose another {flag}"
        )


def with_processor(flags: dict[str, Any]) -> dict[str, Any]:
    """The running command's flags, its processor turned into temperature, top_k and top_p."""
    others = {name: value for name, value in flags.items() if name != "processor"}
    if flags["processor"] is None:
        return others
    chosen = parse_processor(flags["processor"])
    refuse_filters(flags["processor"])
    return {**others, **chosen._asdict()}


def with_grammar(flags: dict[str, Any]) -> dict[str, Any]:
    """The running command's flags, with the rules for outputs turned into one grammar."""
    present = [name for name in GRAMMARS if flags[name] is not None]
    own = {*GRAMMARS, "whitespace_pattern"}
    others = {name: value for name, value in flags.items() if name not in own}
    pattern = flags["whitespace_pattern"]
    if not present:
        if pattern is not None:
            raise UsageError("--whitespace-pattern is for --json-schema", "omit it, or give both")
        return others
    if len(present) > 1:
        first, second = map(flag_name, present[:2])
        raise UsageError(f"{first} and {second} exclude each other", "omit one of them")
    (name,) = present
    try:
        grammar = Grammar.typed(GRAMMARS[name], flags[name])
        grammar = replace(grammar, given_as=name, whitespace_pattern=pattern)
        return {**others, "grammar": grammar}
    except UsageError as error:
        raise error.within(f"{flag_name(name)}: ") from None


def refuse_filters(processor: object) -> None:
    """Refuse filters beside a processor, which stands for them."""
    context = click.get_current_context()
    for name in Filters._fields if processor else ():
        if source(context, name) == "flag":
            flag = flag_name(name)
            raise UsageError(f"--processor and {flag} exclude each other", f"omit {flag}")


def need_model(engine_dir: str | None) -> None:
    """Refuse a command without its model, where not all of its modes need one."""
    if engine_dir is None:
        context = click.get_current_context()
        param = next(p for p in context.command.params if p.name == "engine_dir")
        raise click.MissingParameter(ctx=context, param=param)
