"""From the values that click has parsed to a command's class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import click

from trtla.cli.shared.model import is_trtllm, model_at
from trtla.cli.shared.params import Given
from trtla.cli.shared.upstream import trtllm_settings, upstream_values
from trtla.errors import UsageError
from trtla.settings.executor import TRTLLM_DEFAULTS, TrtllmSettings
from trtla.settings.fields import flag_name, parsed
from trtla.settings.grammar import SETTINGS as GRAMMARS
from trtla.settings.grammar import Grammar
from trtla.settings.sampling import Filters, parse_processor

Kind = TypeVar("Kind")


def flags_as(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Build a command's class of the running command's values.

    The rules for outputs become one grammar, --processor becomes temperature and filters, and
    settings of TensorRT-LLM's executor are left out for a model that it does not run. A field of
    the class with one of these names takes the value as it is.
    """
    given, own = Given(click.get_current_context()), {item.name for item in fields(kind)}  # type: ignore[arg-type]
    made = {**values, "given": given} if "given" in own else {**values}
    if made.get("processor"):
        _refuse_filters(given)
    if "processor" in made and "processor" not in own:
        made |= _of_processor(made.pop("processor"))
    if "whitespace_pattern" in made:
        made |= _grammar({name: made.pop(name) for name in (*GRAMMARS, "whitespace_pattern")})
    if "trtllm_executor" in made and made.get("engine_dir") is not None:
        made |= _executor_settings(given, made, own)
    return parsed(kind, made)


def _of_processor(name: str | None) -> dict[str, Any]:
    return {} if name is None else parse_processor(name)._asdict()


def _refuse_filters(given: Given) -> None:
    """Refuse filters beside a processor, which stands for them."""
    for flag in map(flag_name, filter(given.by_flag, Filters._fields)):
        raise UsageError(f"--processor and {flag} exclude each other", f"omit {flag}")


def _grammar(rules: dict[str, Any]) -> dict[str, Any]:
    """One grammar of the rules for outputs."""
    pattern = rules.pop("whitespace_pattern")
    present = [name for name, text in rules.items() if text is not None]
    if pattern is not None and not present:
        raise UsageError("--whitespace-pattern is for --json-schema", "omit it, or give both")
    if len(present) > 1:
        first, second = map(flag_name, present[:2])
        raise UsageError(f"{first} and {second} exclude each other", "omit one of them")
    for name in present:
        try:
            grammar = Grammar.typed(GRAMMARS[name], rules[name])
            return {"grammar": replace(grammar, given_as=name, whitespace_pattern=pattern)}
        except UsageError as error:
            raise error.within(f"{flag_name(name)}: ") from None
    return {}


_OURS = ("scheduler_policy", "trtllm_executor")
"""Settings of TensorRT-LLM's executor that its run.py has no options for."""


def _executor_settings(given: Given, values: dict[str, Any], own: set[str]) -> dict[str, Any]:
    """The settings of TensorRT-LLM's executor, and the type that --data_type of its programs means.

    Torch engines ignore run.py's settings of that executor, and a preset's."""
    named = [item.name for item in fields(TrtllmSettings) if item.name in values.keys() - own]
    explicit = [
        name
        for name in named
        if given.source(name).startswith("config") or (given.by_flag(name) and name not in _OURS)
    ]
    folder = values["engine_dir"]
    passed = trtllm_settings(given.context, trtllm=lambda: is_trtllm(folder), ignored=explicit)
    ignored = explicit if explicit and not is_trtllm(folder) else ()
    found = {name: getattr(TRTLLM_DEFAULTS, name) for name in ignored}
    theirs = "hf_data_type" in upstream_values(given.context)
    if theirs and _is_own_type(folder, values["dtype"]):
        found["dtype"] = "auto"  # then CPUs without arithmetic in it compute in float32
    pairs = found.get("trtllm_executor", values["trtllm_executor"])
    return {**found, "trtllm_executor": (*pairs, *passed)}


def _is_own_type(engine_dir: str, dtype: str) -> bool:
    engine = model_at(engine_dir).engine
    return engine is not None and engine.config.pretrained_config.dtype == dtype
