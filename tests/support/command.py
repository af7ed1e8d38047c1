"""The command line, in this process or in one of its own, and its refusals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pytest

from trtla.cli.app import execute
from trtla.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]


def there(*commands: str) -> list[str]:
    """Those of the commands that are there: each extra may be missing."""
    return [name for name in commands if name in {*COMMANDS}]


def known(*lines: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Those of the command lines whose command, the first word, is there."""
    return [line for line in lines if there(line[0])]


def needs(*commands: str) -> pytest.MarkDecorator:
    """Skip a test where a command that it runs is missing."""
    missing = [name for name in commands if not there(name)]
    return pytest.mark.skipif(bool(missing), reason=f"there is no command {', '.join(missing)}")


@dataclass(frozen=True)
class Ran:
    """What a command line left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def trtla(*args: str | Path, stdin: str | TextIO = "", env: dict[str, str] | None = None) -> Ran:
    """Run the command line in this process, exactly as `main` does but for the exit."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        for key, value in (env or {}).items():
            patch.setenv(key, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = execute([str(arg) for arg in args])
    return Ran(code, out.getvalue(), err.getvalue())


def process(*args: str | Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m trtla` as a process of its own."""
    command = [sys.executable, "-m", "trtla", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **kwargs.pop("env", {})}
    return subprocess.run(command, capture_output=True, text=True, env=env, **kwargs)


def imports(*lines: list[str], heavy: Sequence[str], code: int = 0) -> Ran:
    """Run command lines in one process; assert their exit code and what they never load."""
    program = f"""
import sys
from trtla.cli import main
for line in {lines!r}:
    try:
        main(line)
    except SystemExit as end:
        assert end.code == {code}, (line, end.code)
    found = [name for name in {heavy!r} if name in sys.modules]
    assert not found, (line, found)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


def holding(method: str, calls: int) -> list[str]:
    """The start of a command line, trtla's arguments follow: it stays in a method's next call.

    So it can be stopped on its way however busy the machine is.

    Args:
        method: as in "trtla.extras.batch.journal:Journal.add".
        calls: those that return.
    """
    owner, _, name = method.rpartition(".")
    program = f"""
import time
from itertools import count
from pkgutil import resolve_name
from trtla.cli import main
owner, calls = resolve_name({owner!r}), count()
real = owner.{name}
def held(*args, **kwargs):
    if next(calls) >= {calls}:
        time.sleep(600)
    return real(*args, **kwargs)
owner.{name} = held
main()
"""
    return [sys.executable, "-c", program]


def refused(ran: Ran, code: int, *parts: str) -> None:
    """Assert a refusal in trtla's form: exit code, one sentence, one hint, no traceback."""
    assert ran.code == code, ran
    lines = [line for line in ran.err.splitlines() if not line.startswith("note: ")]
    assert lines, ran
    assert lines[0].startswith("error: "), ran.err
    assert all(line.startswith("hint: ") for line in lines[1:]), ran.err
    assert len(lines) == 2, ran.err
    for part in parts:
        assert part in ran.err
    assert "Traceback" not in ran.err
