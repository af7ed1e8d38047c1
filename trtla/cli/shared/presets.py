"""Presets: the values of a YAML file as the defaults of a command's flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from trtla.cli.shared.llm_args import as_preset
from trtla.cli.shared.params import PRESET
from trtla.cli.shared.values import BiasesType, ListType, TripleType
from trtla.errors import UsageError, did_you_mean
from trtla.files import read_yaml
from trtla.settings.fields import flag_name, shown

_SWITCHES = {"help", "help_all", "verbose", "quiet", "version"}
_NOT_IN_PRESETS = {"config", "extra_llm_api_options", *_SWITCHES}


def load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Callback of --config: make the preset's values the command's defaults."""
    if value is None:
        return
    if ctx.meta.get(PRESET, value) != value:
        raise UsageError(
            f"--config and --extra-llm-api-options name {ctx.meta[PRESET]} and {value}",
            "give one of them",
        )
    defaults = flag_defaults(ctx, read_yaml(Path(value)), value)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    ctx.meta[PRESET] = value


def flag_defaults(ctx: click.Context, keys: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of a file as defaults of the command's flags; refuse an unknown key."""
    known = [param for param in ctx.command.params if param.name not in _NOT_IN_PRESETS]
    visible = [str(param.name) for param in known if not getattr(param, "hidden", False)]
    named = ((param, (param.name, getattr(param, "alias", ""))) for param in known)
    params = {str(name): param for param, names in named for name in names if name}
    settings = as_preset(dict(keys), params, where, ctx.command_path)
    for key in settings:
        if key not in params:
            raise UsageError(
                f'{where} has the unknown key "{key}"',
                f"{did_you_mean(key, visible)}the keys of {ctx.command_path} are "
                f"{', '.join(sorted(visible))}",
            )
    found: dict[str, Any] = {}
    for key, item in settings.items():
        name = str(params[key].name)
        value = None if item is None else _as_flag(params[key], item, where)
        if value is not None and found.setdefault(name, value) != value:
            both = f"{shown(found[name])} and {shown(value)}"
            raise UsageError(f"{where}: {name} is {both}, under two names", "give one of them")
    return found


def _as_flag(param: click.Parameter, value: Any, where: str) -> Any:
    """A YAML value as on the command line, so that the same types check both."""
    is_flag, has_biases = getattr(param, "is_flag", False), isinstance(param.type, BiasesType)
    if (isinstance(value, bool) and is_flag) or (isinstance(value, dict) and has_biases):
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
            f"write one, as behind {flag_name(str(param.name))}",
        )
    return [str(value)] if param.multiple else str(value)
