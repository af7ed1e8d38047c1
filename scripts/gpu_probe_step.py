"""Section `step` of scripts/gpu_probe.py: what a decoding step costs, and which kernels take it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from gpu_probe_device import DRY, DTYPE, copy_rate, enable_cudnn, host_ms, sync, timed_us
from gpu_probe_feeds import SHAPES, packed, random_model, set_path, step_feed, stepper
from gpu_probe_figures import record

from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed

CONTEXT, TEXT = (20, 100) if DRY else (700, 2000)
ROUNDS = 1 if DRY else 40
STEPS_PROFILED, SHOWN = 5, 9


@dataclass(frozen=True)
class Cost:
    """Of a step, in microseconds."""

    whole: float
    """From the feeds to the most probable tokens on the host."""
    gpu: float
    """What the device takes where steps follow each other at once."""


def step(size: str = "1B") -> None:
    """Steps of a random model in its shapes: graphs, fused and not, and PyTorch's operations."""
    model, rate = random_model(size, DTYPE), copy_rate()
    print(f"{size}: {model.weight_bytes / 1e9:.2f} GB a step, {CONTEXT} tokens cached")
    set_path(model, fused=False)
    plain = _eager(model, "AR")
    _eager(model, "7,7,7")
    unfused, found = (_graphs(model, size, fused=fused) for fused in (False, True))
    one = found["AR"]
    record(f"step of one token, {size}", model.weight_bytes / one.whole * 1e6 / rate)
    record(f"host beside a step, {size}", (one.whole - one.gpu) / 1e3)
    record(f"graph over PyTorch's operations, {size}", one.whole / plain)
    for tokens, shape in ((84, "7,7,7"), (120, "15,5,15")):
        record(f"{tokens} tokens over one, {size}", found[shape].whole / one.whole)
    record(f"fused over unfused, {size}", one.whole / unfused["AR"].whole)
    if not DRY:
        _kernels(model, size)


def _eager(model: LlamaModel, shape: str) -> float:
    """Microseconds of a step by PyTorch's operations, without cuDNN's plans."""
    run, cache = packed(model, TEXT)
    enable_cudnn(False)
    feed, times = _feed(cache.pool.allocate(TEXT), shape), []
    for index in range(2 if DRY else 16):
        feed.sequence.num_cached = CONTEXT + index  # a new length in every step, as in decoding
        times.append(1e3 * host_ms(lambda: run([feed]).logits.argmax(-1).tolist()))
    enable_cudnn(True)
    found = statistics.median(times[0 if DRY else 3 :])
    print(f"{shape}: PyTorch's operations {found:.0f} us a step", flush=True)
    return found


def _graphs(model: LlamaModel, size: str, *, fused: bool) -> dict[str, Cost]:
    """Print what steps by graphs cost, by shape.

    Raises:
        RuntimeError: no graph was captured.
    """
    set_path(model, fused=fused)
    found = {}
    for shape, run, feed, opened_s in _opened(model):
        first = host_ms(lambda: run([feed]))  # noqa: B023
        _require_graph(run)
        if shape == "7,7,7":
            record(f"captures at the start, {size}", opened_s + first / 1e3)
        found[shape] = cost = _cost(lambda: run([feed]).logits.argmax(-1))  # noqa: B023
        print(
            f"{shape}, {'fused' if fused else 'not'}: fed {feed.length}, GPU {cost.gpu:.0f} us, "
            f"with host {cost.whole:.0f}, {model.weight_bytes / cost.gpu / 1e3:.0f} GB/s, "
            f"opened in {opened_s:.1f} s, first step {first / 1e3:.1f} s",
            flush=True,
        )
    return found


def _opened(model: LlamaModel) -> Iterator[tuple[str, Callable[..., Any], Feed, float]]:
    """Each shape, how steps of it run, what they feed, and the seconds until they could."""
    for shape in SHAPES:
        opened: list[tuple[Any, Any]] = []
        taken = host_ms(lambda: opened.append(stepper(model, shape, TEXT)))  # noqa: B023
        run, cache = opened[0]
        yield shape, run, _feed(cache.pool.allocate(TEXT), shape), taken / 1e3


def _require_graph(run: object) -> None:
    if not DRY and not getattr(run, "captured", None):
        problem = getattr(run, "problem", None) or "the model does not run by graphs"
        raise RuntimeError(f"nothing was captured: {problem}")


def _cost(run: Callable[[], torch.Tensor]) -> Cost:
    whole = [1e3 * host_ms(lambda: run().tolist()) for _ in range(ROUNDS)]
    many = 1 if DRY else 10
    gpu = timed_us(lambda: [run() for _ in range(many)]) / many
    return Cost(statistics.median(whole), gpu)


def _kernels(model: LlamaModel, size: str) -> None:
    """Print which kernels take the time, and record their number and what attention takes."""
    from torch.profiler import ProfilerActivity, profile

    layers = model.config.num_hidden_layers
    for shape, run, feed, _ in _opened(model):
        for _ in range(3):
            run([feed])
        sync()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(STEPS_PROFILED):
                run([feed])
            sync()
        rows = [
            (row.self_device_time_total / STEPS_PROFILED, row.count / STEPS_PROFILED, row.key)
            for row in found.key_averages()
        ]
        rows.sort(reverse=True)
        launched = sum(count for _, count, _ in rows)
        print(f"[{size} {shape}] {launched:.0f} kernels, {sum(us for us, *_ in rows):.0f} us busy")
        for us, count, name in rows[:SHOWN]:
            print(f"    {us:8.1f} us  x{count:<5.0f} {name[:100]}")
        attention = sum(us for us, _, name in rows if name.startswith(("attend_pages", "combine")))
        if shape == "AR":
            record(f"kernels a layer, {size}", launched / layers)
        if shape == "7,7,7":
            record(f"attention of 84 tokens, {size}", attention / layers)


def _feed(blocks: tuple[int, ...] | None, shape: str) -> Feed:
    assert blocks is not None
    return step_feed(SHAPES[shape], CONTEXT, blocks)
