"""The `trtla` group: its commands, its version, the rules they share, and shell completion.

Underscores in flag names are accepted, as TensorRT-LLM spells them; environment names are
TRTLA_<COMMAND>_<OPTION>.
"""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from trtla.cli.bench.bench import bench
from trtla.cli.bench.report import report
from trtla.cli.bench.summarize import summarize
from trtla.cli.bench.tune import tune
from trtla.cli.build.build import build
from trtla.cli.build.convert import convert
from trtla.cli.build.doctor import doctor, inspect_path
from trtla.cli.run.chat import chat
from trtla.cli.run.explain import explain
from trtla.cli.run.run import run
from trtla.cli.serve.batch import batch
from trtla.cli.serve.serve import serve
from trtla.cli.shared.command import Command, switches, write_lines
from trtla.console import Console
from trtla.errors import UsageError
from trtla.version import __version__

_FIRST = (
    "trtla build --checkpoint-dir llama-3-8b --output-dir engine",
    "trtla run -m engine -p 'Once upon a time'",
    "trtla chat -m engine",
)


class CommandGroup(click.Group):
    """Lists the commands in the order they are used, not by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a model in its place is what `ollama run` and llama.cpp take there."""
        if args[0] not in self.commands and Path(args[0]).exists():
            raise UsageError(f"{args[0]} is not a command", f"try trtla chat -m {args[0]}")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what to start with, then the exit codes."""
        write_lines(formatter, "Start with", _FIRST)
        super().format_epilog(ctx, formatter)


@click.group(
    cls=CommandGroup,
    params=switches(),
    invoke_without_command=True,  # or click makes an error of the help
    no_args_is_help=False,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={
        "auto_envvar_prefix": "TRTLA",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
    epilog="Exit codes: 0 done; 1 failed; 2 usage or configuration; 3 a check failed; "
    "130 interrupted.",
)
@click.version_option(__version__, message="trtla %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Lookahead decoding for Llama models: Hugging Face checkpoint -> engine -> text.

    A setting is taken from its flag, else from the environment (TRTLA_<COMMAND>_<OPTION>), else
    from the YAML file of --config, else from the engine, else it has the default shown.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit(2)


@click.command(
    cls=Command,
    config=False,
    examples=[
        "trtla completion bash > ~/.local/share/bash-completion/completions/trtla",
        "trtla completion zsh > ~/.zfunc/_trtla",
        "trtla completion fish > ~/.config/fish/completions/trtla.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(console: Console, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, flags, and the values of flags: names, triples, files and folders.
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.BadParameter(f"click has no completion for {shell}")
    script = found(cli, {}, "trtla", "_TRTLA_COMPLETE")
    text = script.source_template % script.source_vars()
    if shell == "fish":  # values such as 7,7,7 have commas
        text = text.replace('string split ","', 'string split --max 1 ","')
    console.out(text)


for _command in (
    convert,
    build,
    run,
    chat,
    serve,
    batch,
    explain,
    summarize,
    bench,
    tune,
    report,
    inspect_path,
    doctor,
    completion,
):
    cli.add_command(_command)
