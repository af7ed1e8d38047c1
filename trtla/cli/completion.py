"""`trtla completion`: the script that makes a shell complete trtla's commands, flags and values.

click writes the scripts; what values there are is known in trtla.cli.values.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from trtla.cli.command import Command
from trtla.console import Console

_VARIABLE = "_TRTLA_COMPLETE"
_FISH_CUTS, _FISH_KEEPS = 'string split ","', 'string split --max 1 ","'


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
    """Print the completion script for a shell.

    It completes commands, flags, and the values that flags know: names, triples, files and folders.
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.BadParameter(f"{shell} is not known to click")
    script = found(ctx.find_root().command, {}, "trtla", _VARIABLE)
    text = script.source_template % script.source_vars()
    if shell == "fish":
        text = text.replace(_FISH_CUTS, _FISH_KEEPS)  # values such as 7,7,7 have commas
    ctx.ensure_object(Console).out(text)
