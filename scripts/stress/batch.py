"""A job of `trtla batch` that is killed again and again: its files are those of an undisturbed one.

Kills come while the model loads, while it decodes and while the output is written. The exit code is
1 where a byte differs, or a line was done twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stress.serving import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
FILES = ("output.jsonl", "errors.jsonl")


def line(index: int, chance: random.Random) -> str:
    """A request, one in fifty of them wrong."""
    words = " ".join(chance.choice(("def", "class", "x", "(", "for", "self")) for _ in range(4))
    body: dict[str, Any] = {"max_tokens": chance.randrange(1, 9), "prompt": words}
    body |= {"temperature": chance.choice((0, 0.7, 1))}
    url = "/v1/completions"
    if index % 3 == 0:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        url = "/v1/chat/completions"
    elif index % 7 == 0:
        body |= {"n": 2, "logprobs": 1}
    if index % 50 == 7:
        body["temprature"] = 1
    request = {"custom_id": f"line {index}", "method": "POST", "url": url, "body": body}
    return "{broken\n" if index % 500 == 9 else json.dumps(request) + "\n"


def start(source: Path, out: Path) -> subprocess.Popen[bytes]:
    """The command, as a process."""
    command = [sys.executable, "-m", "trtla", "batch", str(source), "-o", str(out), "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, "-m", str(SHIPPED)], env=environment, cwd=ROOT, **quiet)


def finished(source: Path, out: Path) -> float:
    """Run to the end; seconds."""
    began, child = time.monotonic(), start(source, out)
    _, err = child.communicate()
    if child.returncode != 1:  # some lines are wrong
        sys.exit(f"exit code {child.returncode}: {err.decode()}")
    return time.monotonic() - began


def numbers(out: Path) -> list[int]:
    """The lines that the journal has, as often as it has them."""
    path = out / "journal"
    data = path.read_bytes() if path.exists() else b""
    return [int(one.split(b" ", 2)[1]) for one in data.split(b"\n")[:-1]]


def kill(source: Path, out: Path, chance: random.Random, most: float, share: int) -> int:
    """Start, and kill at a random moment; how many lines are done then.

    Args:
        most: seconds after which it is killed at the latest.
        share: lines of a turn at most, so that all kills come before the end.
    """
    before, child = len(numbers(out)), start(source, out)
    wanted = before + chance.randrange(share) if chance.random() < 0.8 else sys.maxsize
    ends = time.monotonic() + chance.random() * most if wanted == sys.maxsize else sys.maxsize
    while child.poll() is None and time.monotonic() < ends and len(numbers(out)) <= wanted:
        time.sleep(0.02)
    time.sleep(chance.random() / 100)
    child.send_signal(chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
    child.communicate()
    return len(numbers(out))


def main(arguments: list[str]) -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(prog="stress batch", description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        source, plain, out = (Path(name) / one for one in ("in.jsonl", "plain", "out"))
        source.write_text("".join(line(i, chance) for i in range(args.lines)))
        seconds = finished(source, plain)
        print(f"undisturbed: {args.lines} lines in {seconds:.1f} s", flush=True)
        out.mkdir()
        job = json.loads((plain / "job.json").read_text())
        (out / "job.json").write_text(json.dumps({**job, "finished": None}))  # the same `created`
        share = 2 * args.lines // (args.kills + 2)
        for turn in range(args.kills):
            done = kill(source, out, chance, 6.0, share)
            print(f"kill {turn + 1}: {done} lines are done", flush=True)
        twice = [number for number, count in Counter(numbers(out)).items() if count > 1]
        finished(source, out)
        same = [(plain / one).read_bytes() == (out / one).read_bytes() for one in FILES]
        print(f"same bytes: {dict(zip(FILES, same, strict=True))}; done twice: {len(twice)}")
        return 0 if all(same) and not twice else 1
