"""One step at a time: commands in processes of their own, their output in the step's log."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

NOT_RUN = "not run"
LIMIT_S = 3600
"""Longest time of one command: building an engine takes minutes at most."""


class Skipped(Exception):
    """What a step needs is not here."""


class Failed(Exception):
    """A command of a step ended with an error, or something it says is wrong."""

    def __init__(self, said: str, code: int = 1) -> None:
        super().__init__(said)
        self.code = code


@dataclass(frozen=True)
class Outcome:
    """How a step ended: pass, rounding, skipped, fail or not run."""

    name: str
    word: str
    seconds: float = 0.0
    code: int = 0
    note: str = ""


@dataclass
class Run:
    """Where everything is, and what the commands of the steps see."""

    root: Path
    work: Path
    variables: dict[str, str]
    stand_in: bool
    python: Path = field(default_factory=lambda: Path(sys.executable))
    log: TextIO = sys.stderr

    def folder(self, name: str) -> Path:
        """A folder of a step."""
        path = self.work / name
        path.mkdir(exist_ok=True)
        return path

    def call(self, *command: object, out: Path | None = None, codes: tuple[int, ...] = (0,)) -> int:
        """Run a command; its output goes to the log, with `out` its stdout to that file.

        Raises:
            Failed: it ended with another code than these, or took too long.
        """
        words = [str(word) for word in command]
        self.log.write(f"$ {shlex.join(words)}\n")
        self.log.flush()
        with contextlib.ExitStack() as files:
            stdout: Any = files.enter_context(out.open("w")) if out else self.log
            code = self._run(words, stdout)
        if code not in codes:
            raise Failed(f"{shlex.join(words[:4])} ... ended with {code}", code)
        return code

    def _run(self, words: list[str], stdout: TextIO) -> int:
        process = subprocess.Popen(
            words,
            cwd=self.root,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=self.log,
            start_new_session=True,
        )
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{words[0]} took longer than {LIMIT_S} s", 124) from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def trtla(self, *arguments: object, out: Path | None = None) -> int:
        """Run a command of trtla."""
        return self.call(self.python, "-m", "trtla", *arguments, out=out)

    def script(self, name: str, *arguments: object) -> int:
        """Run a script of this folder: 0, or 3 where texts part at near ties alone."""
        path = Path(__file__).with_name(name)
        return self.call(self.python, path, *arguments, codes=(0, 3))

    def machine(self) -> dict[str, Any]:
        """What doctor has found.

        Raises:
            Failed: doctor has failed.
        """
        try:
            return dict(json.loads((self.work / "doctor.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise Failed(f"doctor has not described this machine: {error}") from None


Step = Callable[[Run], "int | str | None"]
"""Gives 3 where texts part at near ties alone, or a note."""


def attempt(name: str, step: Step, run: Run) -> Outcome:
    """Run a step; whatever it raises is its outcome."""
    started = time.perf_counter()
    word, code, note = "pass", 0, ""
    with (run.work / "logs" / f"{name}.log").open("w", encoding="utf-8") as run.log:
        try:
            said = step(run)
            word, code = ("rounding", 3) if said == 3 else ("pass", 0)
            note = said if isinstance(said, str) else ""
        except Skipped as reason:
            word, note = "skipped", str(reason)
        except Failed as error:
            word, code, note = "fail", error.code, str(error)
        except Exception as error:
            word, code, note = "fail", 1, f"{type(error).__name__}: {error}"
            traceback.print_exc(file=run.log)
    return Outcome(name, word, time.perf_counter() - started, code, note)
