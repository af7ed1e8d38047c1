"""Where a setting came from, and the YAML presets of --config.

Precedence: flag > environment TRTLA_<COMMAND>_<OPTION> > --config > the engine's own > default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from trtla.cli.shared.values import ListType
from trtla.errors import UsageError, did_you_mean
from trtla.settings.value_types import TripleType

_CONFIG = "trtla.formats.config"  # click's ctx.meta key of the preset's path
_NOT_IN_PRESETS = {"config", "help", "help_all", "verbose", "quiet", "version"}


def load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Callback of --config: make the preset's values the command's defaults.

    Raises:
        UsageError: the file is not readable YAML, or has a key that the command does not know.
    """
    if value is None:
        return
    params = {p.name: p for p in ctx.command.params if p.name and p.name not in _NOT_IN_PRESETS}
    shown = [name for name, param in params.items() if not getattr(param, "hidden", False)]
    settings = _read(Path(value))
    for key in settings:
        if key not in params:
            raise UsageError(
                f'{value} has the unknown key "{key}"',
                f"{did_you_mean(key, shown)}the keys of {ctx.command_path} are "
                f"{', '.join(sorted(shown))}",
            )
    given = {key: item for key, item in settings.items() if item is not None}
    ctx.default_map = {key: _as_flag(params[key], item, value) for key, item in given.items()}
    ctx.meta[_CONFIG] = value


def _read(path: Path) -> dict[str, Any]:
    """A preset's settings; of a mistyped name, the one that may have been meant is reported."""
    from trtla.files import read_yaml

    try:
        return read_yaml(path)
    except UsageError as error:
        others = path.parent.glob("*.y*ml") if not path.exists() else ()
        guess = did_you_mean(str(path), map(str, others))
        raise UsageError(error.message, f"{guess}{error.hint or ''}".strip() or None) from None


def _as_flag(param: click.Parameter, value: Any, where: str) -> Any:
    """A YAML value as the command line would have it: both are checked by the same types."""
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
    if isinstance(value, list | dict):
        raise UsageError(
            f'{where}: "{param.name}" is {value!r}, not a single value', "see configs/"
        )
    return [str(value)] if param.multiple else str(value)


def source(ctx: click.Context, name: str) -> str:
    """Where a parameter's value came from: flag, environment NAME, config FILE or default."""
    kind = ctx.get_parameter_source(name)
    if kind is ParameterSource.COMMANDLINE:
        return "flag"
    if kind is ParameterSource.ENVIRONMENT:
        return f"environment {ctx.auto_envvar_prefix}_{name.upper()}"
    if kind is ParameterSource.DEFAULT_MAP:
        return f"config {ctx.meta.get(_CONFIG, '')}".rstrip()
    return "default"


def origin(ctx: click.Context, name: str) -> str:
    """What an error adds to a bad value: where it came from, when it was no flag."""
    where = source(ctx, name)
    return f" (from {where})" if where.startswith(("environment", "config")) else ""


def sources(ctx: click.Context, *names: str) -> dict[str, str]:
    """`source` of several parameters."""
    return {name: source(ctx, name) for name in names}


def check_folder(path: Path, flag: str) -> None:
    """Refuse a file whose folder is missing; `flag` is what names it."""
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} of {flag} does not exist", "make it first")


def check_new_file(path: Path, flag: str, *, force: bool) -> None:
    """Refuse a file whose folder is missing, or that exists and shall not be replaced.

    Raises:
        UsageError: `flag` is what names it.
    """
    check_folder(path, flag)
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists already", f"add --force to replace it, or choose another {flag}"
        )
