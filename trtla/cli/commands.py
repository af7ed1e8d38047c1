"""The commands by name, each imported when it is run, and the group that lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

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
    "chat": ("run.chat:chat", "A conversation at the terminal, or from a script."),
    "serve": ("serve.serve:serve", "An OpenAI-compatible server with a web page."),
    "batch": (
        "serve.batch:batch",
        "A file of OpenAI's requests -> a folder of answers, resumable.",
    ),
    "explain": ("run.explain:explain", "One decoding step, described and drawn."),
    "bench": ("bench.bench:bench", "Lookahead, plain decoding and peers, measured in rounds."),
    "tune": (
        "bench.tune:tune",
        "The best lookahead triple for a model, a machine and a kind of text.",
    ),
    "summarize": ("bench.summarize:summarize", "Articles -> latency, tokens per step, ROUGE."),
    "report": ("bench.report:report", "Results of bench, tune and summarize -> one HTML page."),
    "convert": ("build.convert:convert", "Hugging Face folder -> TensorRT-LLM checkpoint."),
    "build": ("build.build:build", "Checkpoint or Hugging Face folder -> engine."),
    "inspect": ("build.doctor:inspect_path", "What a model, checkpoint or engine folder is."),
    "doctor": ("build.doctor:doctor", "What this machine can run, and with which backend."),
    "completion": ("app:completion", "Print the completion script for a shell."),
}
"""Module and function of each command, and its sentence in the group's help."""


class Commands(Mapping[str, click.Command]):
    """Every command by its name, in the order of use."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, function = _COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(f"trtla.cli.{module}"), function)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


COMMANDS = Commands()


class CommandGroup(click.Group):
    """A group that lists its commands without importing them, for an immediate help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; a model in its place gets a hint, as `ollama run` and llama.cpp take one."""
        if cmd_name in _COMMANDS or ctx.resilient_parsing:
            return COMMANDS.get(cmd_name)
        if Path(cmd_name).exists():
            hint = f"try trtla chat {cmd_name}"
        else:
            hint = f"{served_by(cmd_name, _COMMANDS)}see trtla --help"
        raise UsageError(f"{cmd_name} is not a command", hint)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_lines(formatter, "Start with", _FIRST)
        super().format_epilog(ctx, formatter)
