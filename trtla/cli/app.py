"""The `trtla` group, completion, and the run of a command line: errors become exit codes.

Underscores in flag names are accepted, as TensorRT-LLM spells them; environment names are
TRTLA_<COMMAND>_<OPTION>. Exit codes: 0 done; 1 failed; 2 usage or configuration; 3 a check failed.
With --json an error is a JSON document on stdout, except for a failed check, whose document is
printed before.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import get_completion_class

from trtla.cli.commands import COMMANDS, CommandGroup
from trtla.cli.shared.command import Command, switches
from trtla.cli.shared.params import Given
from trtla.console import Console
from trtla.errors import (
    CheckFailed,
    TrtlaError,
    TrtlaWarning,
    closest,
    did_you_mean,
    missing_package,
    sentence,
    served_by,
)
from trtla.interrupts import INTERRUPTS
from trtla.machine import process_rank
from trtla.settings.drafting import DRAFT_PREFIX, HEAD_PREFIX
from trtla.settings.fields import declared
from trtla.settings.sampling import SamplingParams
from trtla.version import __version__

_FAILED = 1
_ANSWERING = ("run", "chat", "serve")
"""Commands whose flags are those of other tools' programs, and may be each other's."""
_DRAFTS = {"--head": HEAD_PREFIX, "--draft-model": DRAFT_PREFIX}
"""Flags of single commands for what --drafter names elsewhere."""


@click.group(
    cls=CommandGroup,
    params=switches(),
    invoke_without_command=True,  # click would make the help an error
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
@click.version_option(__version__, "-V", "--version", message="trtla %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Lookahead decoding for language models: a GGUF file, a Hugging Face model or an engine -> the
    same text in less time.

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

    It completes commands, flags, names of choices, files and folders.
    """
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.BadParameter(f"click has no completion for {shell}")
    script = completion_class(cli, {}, "trtla", "_TRTLA_COMPLETE")
    console.out(script.source_template % script.source_vars())


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it is shown."""

    message: str
    hint: str | None
    kind: str
    exit_code: int


def execute(args: list[str]) -> int:
    """Run the command line behind `trtla`, and return the exit code.

    Raises:
        KeyboardInterrupt: on Ctrl-C, whatever error it caused; the only other one is SystemExit.
    """
    console = Console(json=_early(args, "--json"), verbose=_early(args, "--verbose", "-v"))
    console.quiet = process_rank() > 0  # all ranks have the same notes
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # texts may hold characters that a terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    if hasattr(sys.stdin, "reconfigure"):  # input that is not UTF-8 is refused by its reader
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        with _warnings_as_notes(console):
            code = cli.main(args, prog_name="trtla", obj=console, standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        if INTERRUPTS.came or isinstance(error, click.Abort):
            raise KeyboardInterrupt from None
        if isinstance(error, BrokenPipeError):
            _drop_stdout()  # its reader has gone (`| head`)
            return _FAILED
        return _report(error, console)
    return code if isinstance(code, int) else 0


@contextmanager
def _warnings_as_notes(console: Console) -> Iterator[None]:
    """Print trtla's own warnings as notes; those of other libraries are shown as usual, except for
    transformers', which are for developers."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, TrtlaWarning):
                console.note(f"note: {message}")
            else:
                show(message, category, *where, **more)

        warnings.showwarning = note
        warnings.simplefilter("always", TrtlaWarning)
        warnings.filterwarnings("ignore", module="transformers")
        yield


def _early(args: list[str], *names: str) -> bool:
    end = args.index("--") if "--" in args else len(args)
    return any(name in args[:end] for name in names)


def _drop_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _clear_stdout() -> None:
    """Flush stdout, or drop its rest: Python would fail on it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()


def _report(error: Exception, console: Console) -> int:
    console.advice = ""
    if console.verbose and not isinstance(error, click.ClickException):
        traceback.print_exception(error)
    failure = classify(error)
    if console.json and not isinstance(error, CheckFailed):
        body = {"message": failure.message, "hint": failure.hint, "type": failure.kind}
        with suppress(OSError):  # stdout may have failed
            console.document({"error": body})
            return failure.exit_code
        _drop_stdout()
    _clear_stdout()
    where = f"rank {process_rank()}: " if process_rank() else ""
    print(f"{where}error: {_printable(failure.message)}", file=sys.stderr)
    if failure.hint:
        print(f"{where}hint: {_printable(failure.hint)}", file=sys.stderr)
    return failure.exit_code


def _printable(text: str) -> str:
    """The text on one line without control characters, which values and file names may hold."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def classify(error: Exception) -> Failure:
    """The sentence, hint, name and exit code of an error."""
    if isinstance(error, TrtlaError):
        return Failure(error.message, error.hint, type(error).__name__, error.exit_code)
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, OSError) and error.strerror:
        prefix = f"{error.filename}: " if error.filename else ""
        hint = "check the path, its permissions and the free space"
        code = 2 if error.errno == errno.ENAMETOOLONG else 1
        return Failure(f"{prefix}{error.strerror}", hint, "OSError", code)
    if isinstance(error, ValueError) and "null byte" in str(error):  # Python's, of any path
        return Failure("a path holds a NUL character", "correct the path", "UsageError", 2)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "trtla").startswith("trtla"):
        return Failure(*missing_package(error.name or ""), "ModuleNotFoundError", 1)
    return Failure(
        f"{sentence(error)} (this is a bug in trtla)",
        "run the same command with --verbose to see the traceback, and report it",
        type(error).__name__,
        1,
    )


def _usage(error: click.ClickException) -> Failure:
    wrong_flag = isinstance(error, click.NoSuchOption)
    text = error.message if wrong_flag else error.format_message()  # click guesses far-off names
    message = " ".join(line.strip() for line in text.rstrip(".").splitlines())
    if isinstance(error, click.BadParameter):  # click lists twelve spellings of true, and guesses
        message = re.split(r"\. (?:Recognized values|Did you mean)", message)[0]
    context = getattr(error, "ctx", None)
    hint = _page(error, context)
    if isinstance(error, click.NoSuchOption):
        hint = _meant(error) + hint
    elif isinstance(error, click.BadParameter):
        hint = _meant_value(error) + hint
    if message.startswith("Got unexpected extra argument") and context:
        takes_prompt = any(param.name == "prompt" for param in context.command.params)
        hint = "put quotes around a prompt; " * takes_prompt + hint
    missing = error.param if isinstance(error, click.MissingParameter) else None
    if missing and "-m" in missing.opts:
        hint = f"give {missing.opts[0]} a model folder or a GGUF file; {hint}"
    if isinstance(error, click.BadParameter) and context and error.param and error.param.name:
        message += Given(context).origin(error.param.name)
    return Failure(message[0].lower() + message[1:], hint, "UsageError", 2)


def _page(error: click.ClickException, context: click.Context | None) -> str:
    """A hint to the help that has the flag: --help of some commands shows the basic ones only."""
    if context is None:
        return "see trtla --help"
    flag = getattr(error, "param", None)
    any_flag = isinstance(error, click.NoSuchOption)
    has_long = any("--help-all" in param.opts for param in context.command.params)
    rest = has_long and (any_flag or (flag is not None and not getattr(flag, "basic", True)))
    return f"see {context.command_path} --help{'-all' * rest}"


def _meant_value(error: click.BadParameter) -> str:
    """The beginning of a hint: the value that serves in place of a wrong one."""
    kind = error.param.type if error.param else None
    if isinstance(kind, click.types.BoolParamType):
        return "use true or false; "
    typed = re.match("'(.*)' is not one of ", error.message)
    return did_you_mean(typed[1], kind.choices) if typed and isinstance(kind, click.Choice) else ""


def _meant(error: click.NoSuchOption) -> str:
    """The beginning of a hint: what serves in place of a wrong flag, or resembles it most."""
    wrong, command = error.option_name, error.ctx.command if error.ctx else cli
    names = [name for name in ("run", "serve") if name != command.name]
    names = names if command.name in _ANSWERING else ["convert"] * (command.name == "build")
    if wrong in _DRAFTS and "--drafter" in _flags(command):
        return f"name it by --drafter {_DRAFTS[wrong]}PATH; "
    others = {name: _flags(COMMANDS[name]) for name in names}
    exact = next((name for name in others if wrong in others[name]), None)
    if exact:
        return _of_another(command, exact, wrong, others[exact])
    if meant := served_by(wrong, _flags(command)):
        return meant
    guesses = ((name, closest(wrong, flags)) for name, flags in others.items())
    name, guess = next((pair for pair in guesses if pair[1]), ("", None))
    return _of_another(command, name, guess, others[name]) if guess else ""


def _flags(command: click.Command) -> dict[str, str]:
    """The name of each flag's setting."""
    shown = (param for param in command.params if not getattr(param, "hidden", False))
    return {
        flag: str(param.name) for param in shown for flag in (*param.opts, *param.secondary_opts)
    }


def _of_another(command: click.Command, other: str, flag: str, flags: dict[str, str]) -> str:
    """A hint to the command that has the flag, or to the field of a server's requests."""
    setting = declared(SamplingParams).get(flags[flag]) if command.name == "serve" else None
    if setting is not None:
        return f"requests bring {setting.option.alias or setting.name}; "
    return f"trtla {other} has {flag}; "
