"""Ctrl-C at any moment: 130 and one line, soon, with nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import pytest

from tests.support.command import ROOT, there

SHIPPED = ROOT / "trtla" / "assets" / "tiny-llama"
_WITHIN_S = 120.0
"""Until a test gives up; how soon it is depends on the machine."""
_FRAMES = re.compile(rf'File "{re.escape(str(ROOT))}/(trtla/[^"]*)"')
_ENTRY = {f"trtla/{name}.py" for name in ("__init__", "__main__", "cli/__init__", "interrupts")}
_ENTRY.add("trtla/version.py")
"""What runs before the handler is in place."""


@dataclass(frozen=True)
class Killed:
    """What became of a process that was sent SIGINT."""

    code: int
    err: str
    was_handled: bool
    """It had a second thread before, the one that hears of signals; False: it is not known."""

    @property
    def before_handled(self) -> bool:
        """Whether Python itself ended or swallowed it, before trtla's handler was in place."""
        by_python = self.code in (1, -2) or "Exception ignored" in self.err
        return not self.was_handled and by_python and set(_FRAMES.findall(self.err)) <= _ENTRY


def start(
    *args: str | Path, script: bool = False, code: str = "", out: Path | None = None
) -> subprocess.Popen[str]:
    """Start a trtla, SIGINT as on a terminal; stdin is an idle pipe, stdout one or a file."""
    entry = [Path(sys.executable).with_name("trtla")] if script else [sys.executable, "-m", "trtla"]
    with out.open("wb") if out else contextlib.nullcontext(subprocess.PIPE) as stdout:
        return subprocess.Popen(
            [*([sys.executable, "-c", code] if code else entry), *args],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def has_handler(child: subprocess.Popen[str]) -> bool:
    """Whether it runs and has a second thread, the one that hears of signals."""
    tasks = Path(f"/proc/{child.pid}/task")
    return child.poll() is None and len(list(tasks.iterdir())) > 1


def killed(child: subprocess.Popen[str]) -> Killed:
    """Send it SIGINT; again if it goes on, Python having swallowed one before the handler was."""
    with child:
        was_handled = has_handler(child)
        child.send_signal(signal.SIGINT)
        late = threading.Timer(_WITHIN_S, child.kill)
        late.start()
        while not was_handled and child.poll() is None:
            if has_handler(child):
                child.send_signal(signal.SIGINT)
                break
            time.sleep(0.01)
        assert child.stderr is not None
        err = child.stderr.read()
        late.cancel()
        return Killed(child.wait(), err, was_handled)


def commands(folder: Path, engine: Path) -> Iterator[tuple[Path | None, list[str | Path]]]:
    """Command lines that take long, one of each kind, again and again.

    Before each stands the file that has content when it has done its work; None: it ends by signals
    alone.
    """
    source = folder / "requests.jsonl"
    body = {"prompt": "a", "max_tokens": 100}
    ask = {"method": "POST", "url": "/v1/completions", "body": body}
    source.write_text("".join(json.dumps({"custom_id": f"{i}", **ask}) + "\n" for i in range(500)))
    for number in range(1000):
        out, built, batch = (folder / f"{name}{number}" for name in ("out", "built", "batch"))
        yield out, ["run", "-m", engine, "-p", "ab", "-n", "250", "--no-lookahead"]
        build: list[str | Path] = ["build", "--checkpoint-dir", SHIPPED, "--output-dir", built]
        yield built / "config.json", build
        yield None, ["serve", "-m", SHIPPED, "--port", "0"]
        if there("chat"):
            yield None, ["chat", "-m", SHIPPED]
        if there("batch"):
            yield batch / "output.jsonl", ["batch", source, "-o", batch, "-m", SHIPPED]


@pytest.mark.deep
def test_ctrl_c_at_any_moment(engine: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    for number, (made, args) in zip(range(20), commands(tmp_path, engine), strict=False):
        child = start(*args, script=number % 2 == 0, out=tmp_path / f"out{number // 5}")
        time.sleep(chance.uniform(0.02, 3.0) if number % 3 else chance.uniform(0.02, 0.5))
        done = killed(child)
        if done.before_handled:
            continue
        assert "Traceback" not in done.err, (args, done)
        assert "Exception ignored" not in done.err, (args, done)
        interrupted = done.err.count("error: interrupted\n")
        if done.code == 130:
            assert interrupted == 1 or args[0] == "serve", (args, done)
            continue
        # All was done; at its very end Python has no handlers any more.
        assert done.code in (0, -2), (args, done)
        assert interrupted == 0, (args, done)
        assert made is not None, (args, done)
        assert made.stat().st_size, (args, done)
    assert not list(tmp_path.glob(".*"))


_SWALLOWED_BEFORE = """
import time
class Last:
    def __del__(self):
        print("begun", flush=True)
        while True: time.sleep(0.05)
Last()
from trtla.cli import main
main(["chat"])
"""


def test_a_first_one_that_python_swallows_is_followed_by_another() -> None:
    child = start(code=_SWALLOWED_BEFORE)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    done = killed(child)
    assert done.before_handled, done
    assert (done.code, done.err.splitlines()[-1]) == (130, "error: interrupted")


_HELD_UP = """
import sys, time
sys.path.append({folder!r})
from trtla.cli import main
import trtla.cli.app
def begun():
    print("begun", flush=True)
def sleeps():  # in pieces: a signal that comes before a call into C does not end it
    while True:
        time.sleep(0.05)
class Other:
    def main(self, *args, **kwargs):
{what}
trtla.cli.app.cli = Other()
main(['run'])
"""
_LOCKED_IN_C = """
import ctypes
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
begun()
libc.pthread_mutex_lock(mutex)
"""
_HOLDS: dict[str, str] = {
    "swallowed": """
try: begun(); sleeps()
except KeyboardInterrupt: sleeps()
""",
    "C": _LOCKED_IN_C,
    "clean-up": """
try: begun(); sleeps()
finally: sleeps()
""",
    "thread": """
from threading import Thread
Thread(target=time.sleep, args=(600,)).start(); begun(); sleeps()
""",
}
_LOSES: dict[str, str] = {
    "finaliser": """
class Last:
    def __del__(self): begun(); sleeps()
Last()
""",
    "import": """
sys.begun, sys.sleeps = begun, sleeps
import this_module_sleeps
""",
    "other error": """
try: begun(); sleeps()
except KeyboardInterrupt: raise ValueError from None
""",
}


def held_up(what: str, folder: Path) -> subprocess.Popen[str]:
    """A command that has begun to do this."""
    (folder / "this_module_sleeps.py").write_text(
        "import sys\ntry: sys.begun(); sys.sleeps()\nexcept BaseException: sys.sleeps()\n"
    )
    child = start(code=_HELD_UP.format(folder=str(folder), what=indent(what, " " * 8)))
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    return child


@pytest.mark.parametrize("what", _LOSES.values(), ids=_LOSES)
def test_an_interrupt_is_not_lost(what: str, tmp_path: Path) -> None:
    done = killed(held_up(what, tmp_path))
    assert (done.code, done.err) == (130, "error: interrupted\n")


@pytest.mark.parametrize("what", _HOLDS.values(), ids=_HOLDS)
def test_a_second_one_ends_it_at_once(what: str, tmp_path: Path) -> None:
    child = held_up(what, tmp_path)
    pending = Path(f"/proc/{child.pid}/status")
    child.send_signal(signal.SIGINT)
    while "ShdPnd:\t0000000000000000" not in pending.read_text():
        time.sleep(0.01)  # two signals that wait are one
    done = killed(child)
    # What did not hold it up yet ended it, and at its very end Python has no handlers any more.
    assert done.code in (130, -2)
    assert done.err == "error: interrupted\n"


def test_ctrl_c_while_torch_is_imported() -> None:
    code = "import threading, os, signal, sys\nfrom trtla.cli import main\n" + _WHILE_IMPORTING
    done = killed_by_itself(code)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


_WHILE_IMPORTING = """
import trtla.cli.app
class Other:
    def main(self, *args, **kwargs):
        def press():
            while "torch._C" not in sys.modules: pass
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=press).start()
        import torch
        raise AssertionError("the import is over")
trtla.cli.app.cli = Other()
main(['doctor'])
"""


def killed_by_itself(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=_WITHIN_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_was_begun_is_undone(name: str, tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from trtla.interrupts import INTERRUPTS
INTERRUPTS.install()
INTERRUPTS.terminable()
from trtla.files import temporary_folder, write_whole
from trtla.formats.atomic import atomic_directory
def pieces():
    yield b"a"
    os.kill(os.getpid(), signal.{name})
    signal.pause()
folder = Path({str(tmp_path)!r})
try:
    with temporary_folder(folder), atomic_directory(folder / "new"):
        write_whole(folder / "file", pieces())
except KeyboardInterrupt:
    sys.exit(INTERRUPTS.say())
"""
    done = killed_by_itself(code)
    said = {"SIGINT": (130, "interrupted"), "SIGTERM": (143, "terminated")}[name]
    assert (done.returncode, done.stderr) == (said[0], f"error: {said[1]}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_entry_point_imports_next_to_nothing() -> None:
    code = (
        "import os, sys; before = set(sys.modules); import trtla.cli; "
        "print(*sorted(set(sys.modules) - before))"
    )
    bare = [sys.executable, "-S", "-c", code]  # without what an editable install imports
    done = subprocess.run(bare, capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = {name for name in done.stdout.split() if not name.startswith("trtla")}
    assert loaded <= {"__future__", "signal", "enum", "types", "functools", "operator", "reprlib",
                      "collections", "keyword", "itertools", "_collections", "_functools",
                      "_operator"}  # fmt: skip
