"""Sections `doctor`, `bench`, `peers`, `sampled`, `memory` and `serve` of scripts/gpu_probe.

They run trtla's own commands on enlarged copies of the shipped model, so that what is accepted is
real. In a dry run it is the shipped model itself.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path
from unittest.mock import patch

import httpx
import numpy as np
import torch
from gpu_probe.device import DEVICE, DRY, copy_rate
from gpu_probe.figures import record
from gpu_probe.models import model_dir
from gpu_probe.texts import cuda_path

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.cli.app import execute
from trtla.data.prompt_sets import load_sets, mixed
from trtla.extras.bench.documents import Bench
from trtla.results.rows import Row

TRIPLES = ["2,3,2", "3,3,2"] if DRY else ["7,7,7", "15,5,15"]
LENGTH = "4" if DRY else "128"
CLIENTS, LOAD_S = (2, 0.2) if DRY else (32, 30.0)
WAIT_S = 60


def trtla(*args: str) -> str:
    """What a command prints on stdout.

    Raises:
        RuntimeError: it failed.
    """
    print("$ trtla", *args, flush=True)
    out = io.StringIO()
    with redirect_stdout(out):
        code = execute(list(args))
    if code:
        raise RuntimeError(f"exit code {code}")
    return out.getvalue()


def doctor() -> None:
    """Which path trtla doctor names, and what the self-test takes that is behind it."""
    taken = []
    with tempfile.TemporaryDirectory() as place, patch.dict(os.environ, XDG_CACHE_HOME=place):
        for _ in range(2):  # the second run finds that it has passed
            start = time.perf_counter()
            found = json.loads(trtla("doctor", "--json"))["cuda_forward"]
            taken.append(time.perf_counter() - start)
    print("CUDA forward:", found)
    record("self-test", taken[0] - taken[1])
    if not DRY:
        record("trtla doctor names the graph path", float(names_graphs(found)))


def names_graphs(forward: str | None) -> bool:
    """Whether this is the graph path; reasons against it speak of graphs too."""
    return forward is not None and forward.startswith("CUDA graphs")


def bench(size: str) -> None:
    """Plain decoding, fixed triples and auto, greedy, one prompt at a time."""
    rate = copy_rate()
    found = _bench(size, "--temperature", "0", "--lookahead", *TRIPLES, "auto")
    rows = {row.arm: row for row in found.rows}
    taken = _number(rows["ar"].ms_per_token) / 1e3
    record(f"plain decoding, {size}", found.cells[0].weight_bytes / taken / rate)
    if size == "8B":
        record("plain decoding, tokens/s, 8B", 1 / taken)
    triples = [rows[f"lookahead {triple}"] for triple in TRIPLES]
    for name, row in zip(("7,7,7", "15,5,15"), triples, strict=True):
        record(f"efficiency of {name}, {size}", _number(row.efficiency))
    best = max(_number(row.speedup_vs_ar) for row in triples)
    record(
        f"auto over the best triple, {size}", _number(rows["lookahead auto"].speedup_vs_ar) / best
    )


def peers(size: str) -> None:
    """Plain decoding beside transformers' generate, and by PyTorch's operations."""
    rows = _bench(size, "--temperature", "0", "--lookahead", TRIPLES[0], "--compare", "hf").rows
    speeds = {row.arm: _number(row.tokens_per_s) for row in rows}
    record(f"plain decoding over transformers, {size}", speeds["ar"] / speeds["hf"])
    with cuda_path("plain"):
        slow = _bench(size, "--temperature", "0", "--lookahead", TRIPLES[0]).rows
    plain = next(_number(row.tokens_per_s) for row in slow if row.arm == "ar")
    record(f"graphs over PyTorch's operations, {size}", speeds["ar"] / plain)


def sampled(size: str) -> None:
    """Plain decoding drawn with a temperature, and with top-p, beside greedy."""
    processors = "greedy,multinomial:0.8,nucleus:0.8:0.9"
    rows = _bench(size, "--processor", processors, "--lookahead", TRIPLES[0]).rows
    speeds = {(row.temperature > 0, row.top_p < 1): row for row in rows if row.arm == "ar"}
    greedy = _number(speeds[False, False].tokens_per_s)
    for kind, nucleus in (("temperature", False), ("top-p", True)):
        share = _number(speeds[True, nucleus].tokens_per_s) / greedy
        record(f"sampled over greedy, {kind}, {size}", share)


def _bench(size: str, *args: str) -> Bench:
    """Measure a model on the shipped code prompts; prints its rows."""
    common = ["--prompts", "code", "--num-prompts", "1" if DRY else "3", "-n", LENGTH]
    dtype = ["--prompt-len", "8"] if DRY else ["--dtype", "bfloat16"]
    rounds = ["--rounds", "1" if DRY else "2", "--device", str(DEVICE), "-q", "--json"]
    out = trtla("bench", "-m", model_dir(size), *common, *dtype, *rounds, *args)
    found = Bench.model_validate_json(out)
    for row in found.rows:
        print(_shown(row), flush=True)
    return found


def _shown(row: Row) -> str:
    names = (
        "tokens_per_s", "ttft_ms", "ms_per_token", "tokens_per_step", "speedup_vs_ar",
        "efficiency", "fed_per_step", "host_ms_per_step", "peak_memory_mb", "equal_texts",
    )  # fmt: skip
    values = {name: getattr(row, name) for name in names}
    figures = (f"{name} {value:.4g}" for name, value in values.items() if value is not None)
    return f"  {row.arm} (temperature {row.temperature:g}, top-p {row.top_p:g}): " + ", ".join(
        figures
    )


def _number(value: float | None) -> float:
    """Raises ArithmeticError where bench has no figure."""
    if value is None:
        raise ArithmeticError("bench has no figure for this")
    return value


def memory(size: str) -> None:
    """What the device holds beside weights and cache, behind batches of several sizes."""
    folder, before = model_dir(size), _free()
    start = time.perf_counter()
    with LLM(
        folder,
        device=str(DEVICE),
        dtype="auto",
        max_batch_size=8,
        lookahead=LookaheadConfig(7, 7, 7),
    ) as llm:
        record(f"opening, {size}", time.perf_counter() - start)
        for count in (1, 4, 8):
            llm.generate(["def f(x):"] * count, SamplingParams(int(LENGTH)))
        cache = llm._executor._cache.data.nbytes  # type: ignore[attr-defined]
        weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        taken = before - _free()
    print(
        f"weights {weights / 1e9:.2f} GB, cache {cache / 1e9:.2f} GB, in all {taken / 1e9:.2f} GB"
    )
    if not DRY:  # a CPU's memory is not counted so
        record(f"memory beyond weights and cache, {size}", (taken - weights - cache) / 1e9)


def _free() -> int:
    """Bytes of the device that nobody has taken."""
    if DRY:
        return 0
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return int(torch.cuda.mem_get_info()[0])


def serve(size: str) -> None:
    """Clients of a server at the same time: first briefly, for how much it takes, then long."""
    with _server(model_dir(size)) as url:
        brief, seconds = _load(url, 2 * CLIENTS)
        count = max(2 * CLIENTS, round(LOAD_S * len(brief) / seconds))
        answers, seconds = _load(url, count)
    done = [answer for answer in answers if answer is not None]
    gaps = [1000 * gap for answer in done for gap in answer.gaps_s]
    first = 1000 * float(np.percentile([answer.first_s for answer in done], 99))
    print(f"{count} requests in {seconds:.1f} s, TTFT p99 {first:.0f} ms")
    record(f"32 clients, tokens/s, {size}", sum(answer.tokens for answer in done) / seconds)
    record(f"32 clients, p99 between tokens, {size}", float(np.percentile(gaps or [0.0], 99)))
    record(f"32 clients, failed requests, {size}", len(answers) - len(done))


@dataclass(frozen=True, slots=True)
class Answer:
    """The times of a streamed answer, and its number of tokens."""

    first_s: float
    gaps_s: tuple[float, ...]
    tokens: int


def _load(url: str, count: int) -> tuple[list[Answer | None], float]:
    """Return the answers to so many requests, None for failures, and the seconds of all."""
    questions = mixed(load_sets(("code", "chat"), (), count))
    texts = islice(cycle(question.turns[0] for question in questions), count)
    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda text: _ask(url, text), texts))
    return answers, time.perf_counter() - start


def _ask(url: str, text: str) -> Answer | None:
    """Stream an answer; None: it fails."""
    body = {
        "prompt": text,
        "max_tokens": int(LENGTH),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent, seen, tokens = time.perf_counter(), list[float](), 0
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if chunk["choices"] and chunk["choices"][0]["text"]:
                        seen.append(time.perf_counter())
                    if usage := chunk.get("usage"):
                        tokens = usage["completion_tokens"]
    except httpx.HTTPError:
        return None
    if not seen:
        return None
    return Answer(seen[0] - sent, tuple(b - a for a, b in pairwise(seen)), tokens)


@contextmanager
def _server(folder: str) -> Iterator[str]:
    """`trtla serve` in a process of its own; yields its address.

    Raises:
        RuntimeError: it ends instead.
    """
    args = ["serve", "-m", folder, "--port", "0", "--device", str(DEVICE)]
    args += ["--lookahead", TRIPLES[0]]
    size = ["--max-batch-size", str(CLIENTS), *([] if DRY else ["--dtype", "bfloat16"])]
    command = [sys.executable, "-W", "ignore", "-m", "trtla", *args, *size]
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                yield _address(process, log)
            finally:
                process.terminate()
                process.wait(30)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """What the server says it listens on, once it can answer."""
    end = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < end:
        if found := re.search(r"listens on (http://[\d.]+:\d+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"the server does not answer: {log.read_text()[-500:]}")
