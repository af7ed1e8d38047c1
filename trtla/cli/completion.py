"""`trtla completion`: the script that makes a shell complete trtla's commands and flags."""

from __future__ import annotations

import click

from trtla.cli.command import Command
from trtla.console import Console


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
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    if script is not None:
        root = ctx.find_root().command
        text = script(root, {}, "trtla", "_TRTLA_COMPLETE").source_template
        console = ctx.ensure_object(Console)
        console.out(text % script(root, {}, "trtla", "_TRTLA_COMPLETE").source_vars())
