"""The commands by name, each imported when it is run, and the group that lists them.

The package of a folder of trtla/extras with a file command.py declares its commands in COMMANDS,
and what extends another command in EXTENSIONS. Nothing else in the core knows an extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from trtla.cli.shared.command import write_lines
from trtla.errors import UsageError, served_by

_FIRST = (
    "trtla run model.gguf 'Once upon a time'",
    "trtla chat org/name",
    "trtla serve model.gguf",
)
_COMMANDS = {
    "run": ("run.run:run", "Prompts -> text, with lookahead decoding."),
    "serve": ("serve.serve:serve", "An OpenAI-compatible server with a web page."),
    "summarize": ("run.summarize:summarize", "Articles -> latency, tokens per step, ROUGE."),
    "convert": (
        "engines.convert:convert",
        "Hugging Face folder or GGUF file -> TensorRT-LLM checkpoint.",
    ),
    "build": ("engines.build:build", "Checkpoint, Hugging Face folder or GGUF file -> engine."),
    "completion": ("app:completion", "Print the completion script for a shell."),
}
"""Module and function of each core command, below trtla.cli, and its sentence in the help."""
ORDER = (
    *("run", "chat", "serve", "batch", "explain", "bench", "tune", "summarize", "report"),
    *("convert", "build", "inspect", "doctor", "completion"),
)
"""The order of the help; commands that are not listed come last."""
_EXTRAS = Path(__file__).parents[1] / "extras"


@cache
def _extras() -> tuple[ModuleType, ...]:
    """The packages of extras that declare something, which import nothing."""
    names = sorted(path.parent.name for path in _EXTRAS.glob("*/command.py"))
    return tuple(import_module(f"trtla.extras.{name}") for name in names)


@cache
def _listed() -> dict[str, tuple[str, str]]:
    """Module and function of every command, and its sentence, in the order of the help."""
    found = {name: (f"trtla.cli.{place}", text) for name, (place, text) in _COMMANDS.items()}
    for extra in _extras():
        for name, (place, text) in getattr(extra, "COMMANDS", {}).items():
            found[name] = (f"{extra.__name__}.{place}", text)
    places = {name: place for place, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: places.get(item[0], len(places))))


class Commands(Mapping[str, click.Command]):
    """Every command by its name, in the order of use."""

    def __getitem__(self, name: str) -> click.Command:
        core = _COMMANDS.get(name)  # without a look at extras
        command: click.Command = _object(f"trtla.cli.{core[0]}" if core else _listed()[name][0])
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_listed())

    def __len__(self) -> int:
        return len(_listed())


COMMANDS = Commands()


def extension(command: str) -> Any:
    """The class by which an extra extends a command, as the command describes it; None: none is
    there."""
    for extra in _extras():
        if place := getattr(extra, "EXTENSIONS", {}).get(command):
            return _object(f"{extra.__name__}.{place}")
    return None


def _object(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


class CommandGroup(click.Group):
    """A group that lists its commands without importing them, for an immediate help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_listed())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; a model in its place gets a hint, as `ollama run` and llama.cpp take one."""
        if cmd_name in _COMMANDS or cmd_name in _listed() or ctx.resilient_parsing:
            return COMMANDS.get(cmd_name)
        if Path(cmd_name).exists():
            hint = f"try trtla chat {cmd_name}"
        else:
            hint = f"{served_by(cmd_name, _listed())}see trtla --help"
        raise UsageError(f"{cmd_name} is not a command", hint)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _listed().items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        first = [line for line in _FIRST if line.split()[1] in _listed()]
        write_lines(formatter, "Start with", first)
        super().format_epilog(ctx, formatter)
