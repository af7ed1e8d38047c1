"""What a shell is offered."""

from __future__ import annotations

from click.testing import CliRunner

from trtla.cli.app import cli


def offered(line: str, shell: str = "bash") -> list[str]:
    """Return the completions of a line with the cursor at its end, `kind,value` each."""
    words = line.split(" ")
    env = {"_TRTLA_COMPLETE": f"{shell}_complete", "COMP_WORDS": line}
    env["COMP_CWORD"] = words[-1] if shell == "fish" else str(len(words) - 1)
    done = CliRunner().invoke(cli, prog_name="trtla", env=env)
    assert done.exit_code == 0, done.stderr
    if shell == "zsh":
        lines = done.stdout.splitlines()
        return [f"{kind},{value}" for kind, value in zip(lines[::3], lines[1::3], strict=True)]
    return [text.partition("\t")[0] for text in done.stdout.splitlines() if text]
