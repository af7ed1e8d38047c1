#!/usr/bin/env python3
"""What scripts/real_sizes.sh measures: `trtla bench` beside llama.cpp on files of several sizes.

Loads are those of new processes, with the file in the page cache; the least of some in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from real_sizes_families import KINDS, differences
from real_sizes_files import SHAPES, write_enlarged, write_random

from trtla.console import counted
from trtla.data import sample_model
from trtla.data.prompt_sets import load_sets, mixed
from trtla.errors import TrtlaError
from trtla.files import user_cache
from trtla.formats.gguf.header import read_header
from trtla.machine import available_memory

REAL, ENLARGED = "135M", "1.8B"
PROMPT_LEN = 128
LOADS = {
    "trtla": "from trtla import LLM; model = LLM(sys.argv[1], threads=int(sys.argv[2]))",
    "llama.cpp": "from llama_cpp import Llama; model = Llama(sys.argv[1], n_ctx=2048, "
    "n_threads=int(sys.argv[2]), verbose=False)",
}
TIMED = """
import sys, time, {module}
start = time.perf_counter()
{load}
seconds = time.perf_counter() - start
memory = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(memory.split()[1]) * 1024)
"""
HEADS = (
    *("model", "file, GB", "threads", "load, s", "memory, GB", "prompt of 128, tokens/s"),
    *("plain, tokens/s", "memory allows", "auto", "llama.cpp drafting", "ngram-mod"),
)


DIFFERENCES = ("family", "most in logits, folder", "GGUF file")


def file_of(size: str, sample: Path) -> Path:
    """The model's file, written if it is not there."""
    if size == REAL:
        return sample
    shape, _, family = size.partition("-")
    path = user_cache() / "real-sizes" / f"{sample.stem}-{size}-Q4_0.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"note: writing {path}", file=sys.stderr)
        if size == ENLARGED:
            write_enlarged(path, sample)
        else:
            write_random(path, sample, shape, KINDS[family or "llama"])
    return path


def loads(file: Path, threads: int, rounds: int) -> dict[str, tuple[float, int]]:
    """Of each engine seconds and most bytes of memory until a model is open."""
    found: dict[str, list[tuple[float, int]]] = {}
    for _ in range(rounds):
        for name, load in LOADS.items():
            module = load.split()[1]
            if find_spec(module):
                code = TIMED.format(load=load, module=module)
                command = [sys.executable, "-c", code, str(file), str(threads)]
                out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                seconds, memory = out.split()
                found.setdefault(name, []).append((float(seconds), int(memory)))
    return {name: min(runs) for name, runs in found.items()}


def bench(*args: object) -> dict[str, Any]:
    """A document of `trtla bench`."""
    command = [os.environ.get("TRTLA", "trtla"), "bench", *map(str, args), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def ngram_mod(file: Path, threads: int, count: int, length: int) -> float | None:
    """Milliseconds a token of llama-server's drafting without a model; None: there is no server."""
    program = shutil.which("llama-server")
    if program is None:
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "-m", file, "--port", port, "-t", threads, "--spec-type", "ngram-mod"]
    server = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while not answers(f"{url}/health"):
            if server.poll() is not None:
                code = server.returncode
                raise TrtlaError(f"llama-server has ended with {code}", "see its messages")
            time.sleep(0.2)
        return ms_per_token(url, count, length)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def answers(url: str) -> bool:
    """Whether a server has loaded its model."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def ms_per_token(url: str, count: int, length: int) -> float:
    """The mean milliseconds between the tokens of chat answers, one request at a time."""
    times = []
    for question in mixed(load_sets(("code", "chat", "summarization"), (), count)):
        body = {
            "messages": [{"role": "user", "content": question.turns[0]}],
            "max_tokens": length,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        times.append(_stream_ms(f"{url}/v1/chat/completions", body))
    return fmean(times)


def _stream_ms(url: str, body: dict[str, Any]) -> float:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        lines = [(line, time.perf_counter()) for line in answer if line.startswith(b"data: {")]
    chunks = [(json.loads(line[6:]), seen) for line, seen in lines]
    written = [
        seen
        for chunk, seen in chunks
        if chunk["choices"] and chunk["choices"][0]["delta"].get("content")
    ]
    tokens = next(chunk["usage"]["completion_tokens"] for chunk, _ in chunks if chunk.get("usage"))
    return float(1000 * (written[-1] - written[0]) / max(tokens - 1, 1))


def measured(size: str, args: argparse.Namespace) -> dict[str, Any]:
    """All documents of a size: loads, a prompt and plain decoding, drafts where they are real."""
    file, quick = file_of(size, args.sample or sample_model.fetch()), args.quick
    room, need = available_memory(), 2 * file.stat().st_size
    if room is not None and room < need:
        raise TrtlaError(f"{size} needs {need / 1e9:.1f} GB of memory, {room / 1e9:.1f} are free")
    peers = find_spec("llama_cpp") is not None
    rounds, threads = 1 if quick else args.rounds, [int(n) for n in args.threads.split(",")]
    common = ["-m", file, "--threads", args.threads, "--temperature", 0, "--rounds", rounds]
    plain = ["--prompt-len", PROMPT_LEN, "--num-prompts", 1, "--categories", "chat"]
    length = ["-n", 8 if quick else 64]
    found = {
        "size": size,
        "bytes": file.stat().st_size,
        "read_bytes": _read_bytes(file),
        "loads": {n: loads(file, n, rounds) for n in threads},
        "plain": bench(
            *common, *plain, *length, "--lookahead", "1,1,0", *["--compare", "llama.cpp"] * peers
        ),
    }
    if size in (REAL, ENLARGED):
        count = 1 if quick else 5
        asked: list[object] = ["--num-prompts", count, *length, "--respect-eos"]
        compared = ["--compare", "llama.cpp-prompt-lookup"] * peers
        found["drafts"] = bench(*common, *asked, "--lookahead", "auto", *compared)
        found["ngram_mod"] = {n: ngram_mod(file, n, count, int(length[1])) for n in threads}
    shape, _, family = size.partition("-")
    if family:
        file.unlink()  # one of many
    if family and shape == "tiny":
        found["differences"] = differences(family)
    return found


def _read_bytes(file: Path) -> int:
    """Of the weights that every step reads: of an embedding that is no output, only rows are."""
    tensors = read_header(file).tensors
    first = "token_embd.weight" if "output.weight" in tensors else ""
    return sum(one.end - one.offset for name, one in tensors.items() if name != first)


def rows(found: dict[str, Any]) -> list[str]:
    """A row of the table for each number of threads."""
    return [_row(found, cell) for cell in found["plain"]["cells"]]


def _row(found: dict[str, Any], cell: dict[str, Any]) -> str:
    threads, sizes, loaded = cell["threads"], found["bytes"], found["loads"][cell["threads"]]
    plain = {r["arm"]: r for r in found["plain"]["rows"] if r["threads"] == threads}
    drafts = found.get("drafts", {"rows": ()})["rows"]
    served = (found.get("ngram_mod") or {}).get(threads)
    cells = [
        *(found["size"], f"{sizes / 1e9:.2f}", str(threads)),
        " / ".join(f"{seconds:.2f}" for seconds, _ in loaded.values()),
        " / ".join(f"{memory / 1e9:.2f}" for _, memory in loaded.values()),
        " / ".join(_per_s(r["ttft_ms"], PROMPT_LEN) for r in plain.values()),
        " / ".join(_per_s(r["ms_per_token"]) for r in plain.values()),
        f"{cell['read_bandwidth_gb_per_s'] * 1e9 / found['read_bytes']:.1f}",
        _rate(drafts, threads, "lookahead auto"),
        _rate(drafts, threads, "llama.cpp-prompt-lookup"),
        _per_s(served),
    ]
    return _line(*cells)


def _print_tables(documents: list[dict[str, Any]]) -> None:
    first = documents[0]["plain"]
    reads = ", ".join(
        f"{cell['read_bandwidth_gb_per_s']:.1f} GB/s with {counted(cell['threads'], 'thread')}"
        for cell in first["cells"]
    )
    found = first["environment"]
    print(f"{found['cpu']}, {found['cores']} cores, which read {reads}; trtla / llama.cpp\n")
    _print_table(HEADS, [row for document in documents for row in rows(document)])
    compared = {d["size"].partition("-")[2]: d.get("differences") for d in documents}
    if lines := [_line(name, *map("{:.1e}".format, d)) for name, d in compared.items() if d]:
        print()
        _print_table(DIFFERENCES, lines)


def _print_table(heads: tuple[str, ...], lines: list[str]) -> None:
    print(_line(*heads), "|---" * len(heads) + "|", *lines, sep="\n")


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _per_s(ms: float | None, count: int = 1) -> str:
    return f"{1e3 * count / ms:.1f}" if ms else "-"


def _rate(drafts: list[dict[str, Any]], threads: int, arm: str) -> str:
    """Tokens a second behind the first ones, over all categories, and over trtla's plain ones."""
    speeds = []
    for name in (arm, "ar"):
        own = [r for r in drafts if (r["threads"], r["arm"]) == (threads, name)]
        seconds = sum(r["output_tokens"] * (r["ms_per_token"] or 0) / 1e3 for r in own)
        speeds.append(sum(r["output_tokens"] for r in own) / seconds if seconds else 0.0)
    return f"{speeds[0]:.1f} ({speeds[0] / speeds[1]:.2f})" if all(speeds) else "-"


def main() -> int:
    """Measure, print the table, and keep the documents."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--sizes", default=f"{REAL},1B,3B,8B,{ENLARGED}")
    parser.add_argument("--families", action="store_true", help="tiny and 1B of each family")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sample", type=Path, help="the small real model, a GGUF file")
    parser.add_argument("--quick", action="store_true", help="one round of a few tokens")
    args = parser.parse_args()
    of_families = [f"{shape}-{family}" for family in KINDS for shape in SHAPES]
    every = [size for size in of_families if size.startswith(("tiny-", "1B-"))]
    sizes = every if args.families else args.sizes.split(",")
    if unknown := {*sizes} - {REAL, ENLARGED, *SHAPES, *of_families}:
        parser.error(f"--sizes has no {', '.join(sorted(unknown))}")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    documents = []
    try:
        for size in sizes:
            documents.append(measured(size, args))
            kept = args.output_dir / f"{size}.json"
            kept.write_text(json.dumps(documents[-1], indent=1) + "\n", encoding="utf-8")
    except (TrtlaError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
    if documents:
        _print_tables(documents)
    return int(len(documents) < len(sizes))


if __name__ == "__main__":
    sys.exit(main())
