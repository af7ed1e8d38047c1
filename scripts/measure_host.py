#!/usr/bin/env python3
"""Host time of a step: the executor on recorded texts, behind a forward that takes no time.

    .venv/bin/python scripts/measure_host.py --record /tmp/host.json [--batch-size 1,4,16]

The texts of trtla/assets/bench and what a forward costs are recorded once, with the real model;
then their logits are replayed, one-hot. What is left is CPU time of the thread, as means over the
steps of a full batch. The executor's clock adds the recorded seconds of each forward, divided by
--forward-speed, so `auto` decides as if they had passed, and tokens/s count with them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, product
from pathlib import Path
from types import SimpleNamespace

import torch
from measure_acceptance import SHIPPED

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.runtime.auto.probe import measure_costs
from trtla.runtime.costs import CostTable
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop import executor as torch_executor
from trtla.runtime.models.batch import Batch, Forwarded
from trtla.runtime.models.forward import PackedModel
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed

SEVEN = LookaheadConfig(7, 7, 7)
ARMS: dict[str, LookaheadConfig | None] = {
    "plain": LookaheadConfig(1, 1, 0),
    "7,7,7": SEVEN,
    "auto": None,
}
SETS = ("code", "chat")
VOCAB, LENGTH, MOST = 2048, 1024, 16  # of the shipped model; longest text; largest batch
SPARE = 8  # recorded tokens beyond the output, which drafts may reach
Texts = list[tuple[list[int], list[int]]]
"""(prompt, output) of each request."""


def record(path: Path, count: int = 96) -> None:
    """Keep prompts, texts and the cost table of the shipped model."""
    found: dict[str, object] = {}
    with LLM(SHIPPED, lookahead=SEVEN, dtype="float32", max_batch_size=MOST) as llm:
        for name in SETS:
            file = SHIPPED.parent / "bench" / f"{name}.jsonl"
            prompts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
            for temperature in (0.0, 0.5):
                many = list(islice(cycle(prompts), MOST))
                params = [SamplingParams(count + SPARE, temperature, seed=i) for i in range(MOST)]
                llm.end_ids = frozenset()
                done = llm.generate(many, params, LookaheadConfig(1, 1, 0))
                found[f"{name} {temperature}"] = [(c.input_ids, c.output_ids) for c in done]
        inner = llm._executor
        found["costs"] = measure_costs(inner._forward, inner._cache, inner.limits).rows
    path.write_text(json.dumps(found))


class Replay(PackedModel):
    """A target that says what was recorded, after cached text and right drafts alike."""

    dtype, group_size = torch.float32, 2
    arithmetic, weight_bytes = "replayed", None

    def __init__(self, table: CostTable) -> None:
        self.texts: dict[int, list[int]] = {}
        """By request id."""
        self.table = table
        self.clock = self.outside = 0.0
        """Seconds that forwards would have taken, and did take."""
        self.feeds: Sequence[Feed] = ()
        self._one_hot = torch.eye(VOCAB) * 100.0

    def now(self) -> float:
        """Seconds of the thread outside forwards, and those that the forwards would take."""
        return time.thread_time() - self.outside + self.clock

    def new_cache(self, num_blocks: int) -> KVCache:
        """A cache of the shipped model's shape."""
        return KVCache(5, 2, 64, num_blocks, torch.float32, torch.device("cpu"))

    def forward_batch(self, batch: Batch, cache: KVCache) -> Forwarded:
        """One-hot logits of the recorded tokens."""
        started = time.thread_time()
        wanted = [token for feed in self.feeds for token in self._says(feed)]
        logits = self._one_hot[torch.tensor(wanted, dtype=torch.int64)]
        self.clock += self.table.seconds(len(batch.tokens), len(self.feeds))
        self.outside += time.thread_time() - started
        return Forwarded(logits)

    def _says(self, feed: Feed) -> list[int]:
        """The text's next token; something else of the text after a node of the window."""
        text = self.texts[feed.sequence.request.request_id]
        places, first = feed.positions(), feed.tree.first_candidate
        return [
            text[(feed.tokens[node] * 31 + places[node]) % len(text)]
            if 0 < node < first
            else text[places[node] + 1]
            for node in feed.rows
        ]


@dataclass(slots=True)
class Arm:
    """An executor and what its rounds gave."""

    model: Replay
    executor: torch_executor.TorchExecutor
    lookahead: LookaheadConfig | None
    submit_us: list[float] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    tokens_per_step: float = 1.0
    fed: float = 1.0

    def decode(self, texts: Texts, batch: int, params: SamplingParams) -> None:
        """Decode all texts, `batch` at a time."""
        stats = self.executor.stats()
        fed, began, counts, seconds = stats.fed or 0, self.model.now(), list[int](), list[float]()
        submitting = 0.0
        for start in range(0, len(texts), batch):
            submitting += self._submit(texts[start : start + batch], params)
            for count, taken in self._steps():
                counts.append(count)
                if count == batch:
                    seconds.append(taken)
        tokens = len(texts) * params.max_output_len
        self.submit_us.append(1e6 * submitting / len(texts))
        self.step_us.append(1e6 * statistics.fmean(seconds))
        self.tokens_per_s.append(tokens / (self.model.now() - began))
        self.tokens_per_step = (tokens - len(texts)) / sum(counts)
        prompts = sum(len(prompt) for prompt, _ in texts)
        self.fed = ((stats.fed or 0) - fed - prompts) / sum(counts)

    def _submit(self, group: Texts, params: SamplingParams) -> float:
        """Queue requests; the seconds that it took."""
        started = time.thread_time()
        for number, (prompt, output) in enumerate(group):
            self.model.texts[number] = prompt + output
            own = replace(params, seed=number)
            adaptive = self.lookahead is None
            request = Request(number, tuple(prompt), own, self.lookahead, adaptive=adaptive)
            self.executor.submit(request)
        return time.thread_time() - started

    def _steps(self) -> Iterator[tuple[int, float]]:
        """Step to the end: sequences that generated, and seconds beside the forward."""
        while True:
            started = time.thread_time() - self.model.outside
            outputs = self.executor.poll()
            if not outputs:
                return
            taken = time.thread_time() - self.model.outside - started
            count = sum(out.stats.steps > 0 for out in outputs)
            if count:
                yield count, taken


def open_arm(lookahead: LookaheadConfig | None, table: CostTable) -> Arm:
    """An arm with its own executor, whose policy learns over all rounds."""
    model = Replay(table)
    cache = model.new_cache(MOST * LENGTH // 32)
    limits = ExecutorLimits(MOST, LENGTH - 96, LENGTH - 96, 8192, VOCAB, SEVEN)
    executor = torch_executor.TorchExecutor(model, cache, limits, costs=lambda *_: table)
    inner = executor._forward

    def forward(feeds: Sequence[Feed]) -> Forwarded:
        model.feeds = feeds
        return inner(feeds)

    executor._forward = forward
    return Arm(model, executor, lookahead)


def measure(
    texts: Texts, table: CostTable, batch: int, rounds: int, temperature: float
) -> list[Arm]:
    """Rounds of all arms in turn."""
    arms = [open_arm(lookahead, table) for lookahead in ARMS.values()]
    params = SamplingParams(len(texts[0][1]) - SPARE, temperature)
    for _ in range(rounds):
        for arm in arms:
            clock = SimpleNamespace(perf_counter=arm.model.now, monotonic=time.monotonic)
            torch_executor.time = clock  # type: ignore[assignment]
            arm.decode(texts, batch, params)
    return arms


def show(arms: list[Arm], start: str) -> None:
    """Print a row an arm."""
    plain = arms[0].tokens_per_s
    for label, arm in zip(ARMS, arms, strict=True):
        ratios = [a / b for a, b in zip(arm.tokens_per_s, plain, strict=True)]
        submit, step, speed, ratio = map(
            statistics.median, (arm.submit_us, arm.step_us, arm.tokens_per_s, ratios)
        )
        print(
            f"{start} | {label} | {submit:.0f} | {step:.0f} | {arm.tokens_per_step:.2f} "
            f"| {arm.fed:.1f} | {speed:.0f} | {ratio:.3f} |",
            flush=True,
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", type=Path, required=True, help="made when it is not there")
    parser.add_argument("--batch-size", default="1,4,16")
    parser.add_argument("--forward-speed", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.record.exists():
        record(args.record)
    found = json.loads(args.record.read_text())
    faster = args.forward_speed
    rows = tuple((n, tuple((t, s / faster) for t, s in row)) for n, row in found["costs"])
    print("| batch | text | temperature | arm | submit us | step us | S | fed | tokens/s | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for batch in map(int, args.batch_size.split(",")):
        for name, temperature in product(SETS, (0.0, 0.5)):
            texts = found[f"{name} {temperature}"]
            arms = measure(texts, CostTable(rows), batch, args.rounds, temperature)
            show(arms, f"| {batch} | {name} | {temperature}")


if __name__ == "__main__":
    main()
