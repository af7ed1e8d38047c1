"""Ctrl-C at any moment: 130 and one line, soon, with nothing left behind."""

from __future__ import annotations

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

import pytest

from tests.support.command import ROOT

SHIPPED = ROOT / "trtla" / "assets" / "tiny-llama"
_OURS = re.compile(rf'File "{re.escape(str(ROOT))}/trtla/|File "[^"]*/bin/trtla"')
_WITHIN_S = 30.0
"""Until a test gives up; how soon it is depends on the machine."""


@dataclass(frozen=True)
class Killed:
    """What became of a process."""

    code: int
    err: str
    was_done: bool
    """It had ended before the signal came."""

    @property
    def before_trtla(self) -> bool:
        """Whether Python itself had not come to trtla's first line."""
        return self.code in (1, -2) and not _OURS.search(self.err)


def killed(after: float, *args: str | Path, script: bool = False, code: str = "") -> Killed:
    """Send SIGINT to a trtla so many seconds after its start; stdin is an idle pipe."""
    entry = [Path(sys.executable).with_name("trtla")] if script else [sys.executable, "-m", "trtla"]
    with subprocess.Popen(
        [*([sys.executable, "-c", code] if code else entry), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as child:
        time.sleep(after)
        was_done = child.poll() is not None
        child.send_signal(signal.SIGINT)
        late = threading.Timer(_WITHIN_S, child.kill)
        late.start()
        assert child.stderr is not None
        err = child.stderr.read()
        late.cancel()
        return Killed(child.wait(), err, was_done)


def commands(folder: Path, engine: Path) -> Iterator[tuple[str | Path, ...]]:
    """Command lines that take long, one of each kind, again and again."""
    source = folder / "requests.jsonl"
    body = {"prompt": "a", "max_tokens": 100}
    ask = {"method": "POST", "url": "/v1/completions", "body": body}
    source.write_text("".join(json.dumps({"custom_id": f"{i}", **ask}) + "\n" for i in range(500)))
    for number in range(1000):
        yield ("run", "-m", engine, "-p", "ab", "-n", "250", "--no-lookahead")
        yield ("build", "--checkpoint-dir", SHIPPED, "--output-dir", folder / f"b{number}")
        yield ("serve", "-m", SHIPPED, "--port", "0")
        yield ("chat", "-m", SHIPPED)
        yield ("batch", source, "-o", folder / f"o{number}", "-m", SHIPPED)


@pytest.mark.deep
def test_ctrl_c_at_any_moment(engine: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    for number, args in zip(range(20), commands(tmp_path, engine), strict=False):
        after = chance.uniform(0.02, 3.0) if number % 3 else chance.uniform(0.02, 0.5)
        done = killed(after, *args, script=number % 2 == 0)
        if done.was_done or done.before_trtla:
            continue
        assert done.code == 130 or (done.code == 0 and args[0] == "build"), (args, after, done)
        assert "Traceback" not in done.err
        assert "Exception ignored" not in done.err
        if args[0] != "serve":
            assert done.err.count("error: interrupted\n") == (done.code == 130), (args, after, done)
    assert not list(tmp_path.glob(".*"))


_SWALLOWED = """
import os, signal, sys, time
from trtla.cli import main
import trtla.cli.app
real = trtla.cli.app.cli
class Other:
    def main(self, *args, **kwargs):
        {what}
trtla.cli.app.cli = Other()
main(['doctor'])
"""


@pytest.mark.parametrize(
    "what",
    [
        "\n        try: time.sleep(60)\n        except KeyboardInterrupt: time.sleep(60)",
        "\n        class Last:\n            def __del__(self): time.sleep(60)\n"
        "        Last(); time.sleep(60)",
        "\n        import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
        "\n        __import__('this_module_sleeps')",
        "\n        try: time.sleep(60)\n        finally:\n            while True: time.sleep(1)",
        "\n        from threading import Thread"
        "\n        Thread(target=time.sleep, args=(60,)).start(); time.sleep(60)",
    ],
    ids=["swallowed", "finaliser", "C", "import", "clean-up", "thread"],
)
def test_nothing_holds_it_up(what: str, tmp_path: Path) -> None:
    (tmp_path / "this_module_sleeps.py").write_text(
        "import time\ntry: time.sleep(60)\nexcept BaseException: time.sleep(60)\n"
    )
    code = f"import sys; sys.path.append({str(tmp_path)!r})" + _SWALLOWED.format(what=what)
    done = killed(1.0, code=code)
    assert done.code == 130, done.err
    assert done.err == "error: interrupted\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_was_begun_is_undone(name: str, tmp_path: Path) -> None:
    code = f"""
import hashlib, os, signal, threading
from pathlib import Path
from trtla.interrupts import INTERRUPTS
INTERRUPTS.install()
INTERRUPTS.terminable()
from trtla.files import temporary_folder, write_whole
from trtla.formats.atomic import atomic_directory
def pieces():
    yield b"a"
    threading.Timer(0.5, os.kill, (os.getpid(), signal.{name})).start()
    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)
folder = Path({str(tmp_path)!r})
with temporary_folder(folder), atomic_directory(folder / "new"):
    write_whole(folder / "file", pieces())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
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
