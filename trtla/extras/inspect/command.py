"""`trtla inspect`: a model; `trtla doctor`: this machine, and whether a model runs on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click
from click.core import ParameterSource

from trtla.cli.shared.command import Command
from trtla.cli.shared.options import PATH, json_flag, model_flag, options_of
from trtla.cli.shared.params import ModelArgument
from trtla.console import Console, cell, counted, size
from trtla.errors import CheckFailed, TrtlaError, UsageError
from trtla.settings.executor import ExecutorOptions

SCHEMA_VERSION = 1
_FOLDER = (
    "A folder: a Hugging Face model, a checkpoint made by trtla convert or an engine; a GGUF file; "
    "or a name on the hub."
)
_BELOW = ("notes", "problems", "hint", "model")
"""Keys that are no rows of the table."""
_SHOWN = 10
"""The most notes, and problems, that are shown without --json."""


class _Inspected(ModelArgument):
    """What is described without a flag: beside it -m names the model of a trained head."""

    def hand_over(self, ctx: click.Context) -> None:
        value, flag = ctx.params[str(self.name)], ctx.params["engine_dir"]
        by_flag = ctx.get_parameter_source("engine_dir") is ParameterSource.COMMANDLINE
        both = by_flag and value is not None
        ctx.params["target"] = flag if both else None
        if both:
            ctx.params["engine_dir"] = value
        super().hand_over(ctx)


@click.command(
    "inspect",
    cls=Command,
    short_help="What a model, checkpoint, engine folder or trained head is.",
    config=False,
    examples=[
        "trtla inspect engine",
        "trtla inspect llama-3-8b --json",
        "trtla inspect eagle3-head -m llama-3-8b",
    ],
)
@model_flag(type=PATH, argument=_Inspected, help=f"{_FOLDER} Beside a head: its model.")
@options_of(ExecutorOptions, "Options", only=("head_layers",), head_layers={})
@json_flag("Print one JSON document.")
@click.pass_obj
def inspect_path(
    console: Console, engine_dir: str, target: str | None, head_layers: tuple[str, ...] | None
) -> None:
    """Describe a model: a Hugging Face folder, checkpoint, engine or GGUF file; or a trained head.

    Prints its sizes, types, tokens, limits and lookahead triple, its problems (exit code 3), and
    the command that uses it. Of a head it prints what it reads of its model; with -m MODEL beside
    it, whether it fits that model.
    """
    from trtla.extras.inspect.head import describe_head, is_head
    from trtla.extras.inspect.model import describe_model
    from trtla.formats.model import Model

    if is_head(engine_dir):
        layers = ExecutorOptions(head_layers=head_layers).boundaries
        described = describe_head(engine_dir, target, layers)
    elif target not in (None, engine_dir):
        _ = Model.at(engine_dir).config  # a wrong path has its own sentence
        raise UsageError(
            f"two models are named: {target} and {engine_dir}",
            "name one, or a trained head and its model with -m",
        )
    else:
        described, _ = describe_model(engine_dir)
    _show(console, described)
    _check(described)


@click.command(
    cls=Command,
    short_help="What this machine can run, and with which backend.",
    config=False,
    examples=["trtla doctor", "trtla doctor engine", "trtla doctor --json > machine.json"],
)
@model_flag(type=PATH, required=False, help=_FOLDER)
@json_flag("Print one JSON document.")
@click.pass_obj
def doctor(console: Console, engine_dir: str | None) -> None:
    """Describe this machine: versions, processor, memory, GPUs, and TensorRT-LLM if installed.

    With MODEL also describe it as `trtla inspect` does, and check that it runs here (exit code 3
    if not).
    """
    from trtla.extras.inspect.model import describe_model

    model, opened = (None, None) if engine_dir is None else describe_model(engine_dir)
    from trtla.extras.inspect.machine import describe_machine

    machine = describe_machine()
    if model is not None and opened is not None and not model["problems"]:
        from trtla.extras.inspect.fit import check_here

        try:
            model["notes"] += check_here(opened, machine)
        except TrtlaError as error:
            model |= {"next": None, "problems": [error.message], "hint": error.hint}
    _show(console, {**machine, "model": model})
    if model is not None:
        _check(model)


def _check(model: dict[str, Any]) -> None:
    if model["problems"]:
        problems = counted(len(model["problems"]), "problem")
        raise CheckFailed(f"{model['path']} cannot run here: {problems}", model["hint"])


def _show(console: Console, described: dict[str, Any]) -> None:
    if console.json:
        console.document({"schema_version": SCHEMA_VERSION, **described})
        return
    parts = {"": _in_short(described), "model.": described.get("model") or {}}
    shown = {
        f"{prefix}{key}": value
        for prefix, part in parts.items()
        for key, value in part.items()
        if key not in _BELOW
    }
    console.table(("what", "value"), [*_rows(shown)])
    for part in parts.values():
        for kind in ("note", "problem"):
            texts = part.get(f"{kind}s", ())
            for text in texts[:_SHOWN]:
                console.out(f"{kind}: {text}")
            if more := len(texts[_SHOWN:]):
                console.out(f"{kind}: and {more} more, which --json has")


def _in_short(described: dict[str, Any]) -> dict[str, Any]:
    """The description with the processor's name and cores in one row."""
    short: dict[str, Any] = {}
    for key, value in described.items():
        if key == "cpu":
            short["CPU"] = f"{value['model']}, {counted(value['cores'], 'core')}"
            value = {name: value[name] for name in value if name not in ("model", "cores")}
        short[key] = value
    return short


def _rows(described: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield a row for each value, by its dotted name."""
    for key, value in described.items():
        if value and isinstance(value, list | tuple) and isinstance(value[0], dict):
            value = dict(enumerate(value))
        if value and isinstance(value, dict) and not prefix:
            yield from _rows(value, f"{key}.")
        else:
            yield f"{prefix}{key}", _shown(key, value)


def _shown(key: object, value: object) -> str:
    """A value for people: bytes have a unit, a mapping of values is one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(name, each)}" for name, each in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return size(value) if str(key).endswith("bytes") else f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else cell(value)
