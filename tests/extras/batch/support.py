"""Inputs of jobs, and jobs on the shipped model, as commands and as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trtla as package
from tests.support.command import ROOT, Ran, holding, trtla

SHIPPED = Path(package.__file__).parent / "assets" / "tiny-llama"
CHAT, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
FILES = ("output.jsonl", "errors.jsonl")


def ask(custom_id: str, prompt: Any = "def f(", /, **body: Any) -> dict[str, Any]:
    """A line of /v1/completions, greedy and short unless the body says else."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": TEXTS, "body": body}


def chat(custom_id: str, content: str = "Hello", /, **body: Any) -> dict[str, Any]:
    """A line of /v1/chat/completions."""
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def respond(custom_id: str, content: str = "Hello", /, **body: Any) -> dict[str, Any]:
    """A line of /v1/responses."""
    return {"custom_id": custom_id, "method": "POST", "url": RESPONSES,
            "body": {"input": content, **body}}  # fmt: skip


def mixed(count: int) -> list[Any]:
    """Lines of all kinds, some of them wrong."""
    kinds = (
        lambda i: ask(f"greedy {i}", f"def f{i}("),
        lambda i: ask(f"sampled {i}", "class ", temperature=1.0, max_tokens=1 + i % 7),
        lambda i: chat(f"chat {i}", f"What is {i}?"),
        lambda i: ask(f"two {i}", ["import ", "x = "], n=2, seed=i, temperature=0.7, logprobs=1),
        lambda i: ask(f"wrong {i}", temprature=1),
    )
    return [kinds[i % len(kinds)](i) for i in range(count)]


def write(path: Path, lines: list[Any]) -> Path:
    """A file of lines; a text is a line as it is."""
    texts = (one if isinstance(one, str) else json.dumps(one) for one in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def batch(source: Path, out: Path, *args: Any) -> Ran:
    return trtla("batch", source, "-o", out, "-m", SHIPPED, *args)


def texts(out: Path) -> dict[str, list[str]]:
    """The choices' texts by custom_id."""
    found = {}
    for one in read(out / "output.jsonl"):
        choices = one["response"]["body"].get("choices", ())
        found[one["custom_id"]] = [
            c["text"] if "text" in c else c["message"]["content"] for c in choices
        ]
    return found


def start(
    source: Path,
    out: Path,
    *args: Any,
    limit: Callable[[], None] = lambda: None,
    most: int | None = None,
) -> subprocess.Popen[str]:
    """The command as a process, SIGINT as on a terminal.

    Args:
        limit: is called in it first.
        most: lines that it keeps; then it waits to be ended.
    """

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        limit()

    command = ["batch", source, "-o", out, "-m", SHIPPED, *args]
    plain = [sys.executable, "-m", "trtla"]
    entry = plain if most is None else holding("trtla.extras.batch.journal:Journal.add", most)
    return subprocess.Popen(
        [*entry, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=begin,
    )


def kept(out: Path) -> int:
    """Bytes of the journal."""
    path = out / "journal"
    return path.stat().st_size if path.exists() else 0


def wait_for(child: subprocess.Popen[str], out: Path, size: int) -> bool:
    """Wait until the journal has so many bytes; False: the job has ended before."""
    while kept(out) < size:
        if child.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def same_time(begun: Path, out: Path) -> None:
    """A job that has begun when another one did, and has done nothing."""
    job = json.loads((begun / "job.json").read_text())
    out.mkdir()
    (out / "job.json").write_text(json.dumps({**job, "finished": None}))


def content(out: Path) -> list[bytes]:
    return [(out / name).read_bytes() for name in FILES]
