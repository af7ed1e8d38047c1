"""Runs the command line and turns every error into an exit code and at most three lines.

0 done; 1 failed; 2 usage or configuration; 3 a check failed. With --json an error is a JSON
document on stdout, except for a failed check, whose document has been printed already.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click

from trtla.cli.app import cli
from trtla.cli.shared.params import ModelPath, origin
from trtla.console import Console
from trtla.errors import (
    CheckFailed,
    TrtlaError,
    TrtlaWarning,
    did_you_mean,
    missing_package,
    sentence,
)
from trtla.interrupts import INTERRUPTS
from trtla.machine import process_rank

_FAILED = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """How an error is shown."""

    message: str
    hint: str | None
    kind: str
    exit_code: int


def execute(args: list[str]) -> int:
    """Run the command line, what follows `trtla`, and return the exit code.

    Raises:
        KeyboardInterrupt: on Ctrl-C, whatever error came of it; no other but SystemExit is raised.
    """
    console = Console(json=_early(args, "--json"), verbose=_early(args, "--verbose", "-v"))
    console.quiet = process_rank() > 0  # all ranks have the same notes
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # texts may hold what the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")
    if hasattr(sys.stdin, "reconfigure"):  # what is not UTF-8 is refused where it is read
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
    """Print trtla's own warnings as notes; those of other libraries stay as they are."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, TrtlaWarning):
                console.note(f"note: {message}")
            else:
                show(message, category, *where, **more)

        warnings.showwarning = note
        warnings.simplefilter("always", TrtlaWarning)
        yield


def _early(args: list[str], *names: str) -> bool:
    """Whether a flag is there, for errors that come before click has parsed it."""
    end = args.index("--") if "--" in args else len(args)
    return any(name in args[:end] for name in names)


def _drop_stdout() -> None:
    """Print nothing more on stdout, neither here nor at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: Exception, console: Console) -> int:
    if console.verbose and not isinstance(error, click.ClickException):
        traceback.print_exception(error)
    failure = classify(error)
    if console.json and not isinstance(error, CheckFailed):
        body = {"message": failure.message, "hint": failure.hint, "type": failure.kind}
        with suppress(OSError):  # stdout may be what has failed
            console.document({"error": body})
            return failure.exit_code
        _drop_stdout()
    where = f"rank {process_rank()}: " if process_rank() else ""
    print(f"{where}error: {_printable(failure.message)}", file=sys.stderr)
    if failure.hint:
        print(f"{where}hint: {_printable(failure.hint)}", file=sys.stderr)
    return failure.exit_code


def _printable(text: str) -> str:
    """One line without control characters: values and names of files may hold any."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def classify(error: Exception) -> Failure:
    """The sentence, hint, name and exit code of an error."""
    if isinstance(error, TrtlaError):
        return Failure(error.message, error.hint, type(error).__name__, error.exit_code)
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        hint = "check the path, its permissions and the free space"
        code = 2 if error.errno == errno.ENAMETOOLONG else 1
        return Failure(f"{place}{error.strerror}", hint, "OSError", code)
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
    message = text.rstrip(".").replace("\n", " ")
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path} --help" if context else "see trtla --help"
    if isinstance(error, click.NoSuchOption):
        hint = _meant(error) + hint
    if context and message.startswith(_EXTRA):
        hint = _placed(context) + hint
    missing = error.param if isinstance(error, click.MissingParameter) else None
    if missing and (isinstance(missing.type, ModelPath) or missing.name == "engine_dir"):
        hint = f"give {missing.opts[0]} a model folder or a GGUF file; {hint}"
    before, found, guess = message.partition(" Did you mean ")
    if found:
        message, hint = before.rstrip("."), f"did you mean {guess.rstrip('?')}? {hint}"
    if isinstance(error, click.BadParameter) and context and error.param and error.param.name:
        message += origin(context, error.param.name)
    return Failure(message[0].lower() + message[1:], hint, "UsageError", 2)


def _placed(context: click.Context) -> str:
    """How the hint begins: where what was left over belongs."""
    params = context.command.params
    places = {param.name for param in params if isinstance(param, click.Argument)}
    if "prompt" in places:
        return "put quotes around a prompt; "
    if "model" not in places and any(isinstance(param.type, ModelPath) for param in params):
        return f"a model is named with -m, as in {context.command_path} -m MODEL; "
    return ""


_EXTRA = "Got unexpected extra argument"  # click's
_ELSEWHERE = {
    "--prompt": "--input-text",
    "--max-new-tokens": "--max-output-len",
    "--n-predict": "--max-output-len",
    "--model-path": "--model",
    "--alias": "--served-model-name",
    "--parallel": "--max-batch-size",
    "--max-num-seqs": "--max-batch-size",
    "--ctx-size": "--max-seq-len",
    "--max-model-len": "--max-seq-len",
    "--gpu-layers": "--device",
    "--n-gpu-layers": "--device",
}
"""What other tools call our flags."""


def _meant(error: click.NoSuchOption) -> str:
    """How the hint begins: the flag that is most like a wrong one, or means the same elsewhere."""
    command = error.ctx.command if error.ctx else None
    known = {name for param in command.params for name in param.opts} if command else set()
    same = _ELSEWHERE.get(error.option_name)
    if same in known:
        return f"did you mean {same}? "
    if same == "--max-seq-len":
        return "a model's longest text is set by trtla build --max-seq-len; "
    return did_you_mean(error.option_name, error.possibilities or ())
