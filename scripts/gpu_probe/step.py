"""Section `step` of scripts/gpu_probe: what a decoding step costs, and which kernels take it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpu_probe.device import DRY, DTYPE, copy_rate, enable_cudnn, host_ms, sync, timed_us
from gpu_probe.feeds import (
    FED,
    SHAPES,
    open_all,
    packed,
    random_model,
    set_path,
    step_feed,
    stepper,
)
from gpu_probe.figures import record

from trtla.runtime.models.forward import Forwarded
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sampling.draw import argmax
from trtla.runtime.sampling.logits import on_device, on_host
from trtla.runtime.sampling.predict import StepSampler
from trtla.runtime.sequence import Feed

CONTEXT, TEXT = (20, 100) if DRY else (700, 2000)
ROUNDS = 1 if DRY else 40
STEPS_PROFILED, SHOWN = 5, 9
Step = Callable[[], Forwarded]


@dataclass(frozen=True)
class Cost:
    """Of a step, in microseconds."""

    whole: float
    """From the feeds to the most probable tokens on the host."""
    gpu: float
    """What the device takes where steps follow each other at once."""

    @property
    def host(self) -> float | None:
        """What the device waits for the host; None where steps at once took no less.

        Then the host is what steps at once wait for, or noise is larger than its part.
        """
        return self.whole - self.gpu if self.whole > self.gpu else None


def step(size: str) -> None:
    """Steps of a random model in its shapes: graphs, fused and not, and PyTorch's operations."""
    model, rate = random_model(size, DTYPE), copy_rate()
    print(f"{size}: {model.weight_bytes / 1e9:.2f} GB a step, {CONTEXT} tokens cached")
    set_path(model, fused=False)
    plain = _eager(model, "AR")
    _eager(model, "7,7,7")
    set_path(model, fused=True)
    record(f"captures at the start, {size}", host_ms(lambda: open_all(model, TEXT)) / 1e3)
    unfused = _costs(_steps(model, fused=False), model, "unfused")
    steps = _steps(model, fused=True)
    found = _costs(steps, model, "fused")
    one = found["AR"]
    record(f"step of one token, {size}", model.weight_bytes / one.whole * 1e6 / rate)
    if one.host is not None:
        record(f"host beside a step, {size}", one.host / 1e3)
    record(f"graph over PyTorch's operations, {size}", one.whole / plain)
    for tokens, shape in ((84, "7,7,7"), (120, "15,5,15")):
        record(f"{tokens} tokens over one, {size}", found[shape].whole / one.whole)
    record(f"fused over unfused, {size}", one.whole / unfused["AR"].whole)
    if not DRY:
        _kernels(steps, model.config.num_hidden_layers, size)


def _eager(model: LlamaModel, shape: str) -> float:
    """Microseconds of a step by PyTorch's operations, without cuDNN's plans."""
    run, cache = packed(model, TEXT)
    enable_cudnn(False)
    feed, times = _feed(cache.pool.allocate(TEXT), shape), []
    for index in range(2 if DRY else 16):
        feed.sequence.num_cached = CONTEXT + index  # a new length in every step, as in decoding
        times.append(1e3 * host_ms(lambda: argmax(on_host(run([feed]).logits))))
    enable_cudnn(True)
    found = statistics.median(times[0 if DRY else 3 :])
    print(f"{shape}: PyTorch's operations {found:.0f} us a step", flush=True)
    return found


def _steps(model: LlamaModel, *, fused: bool) -> dict[str, Step]:
    """Steps by graphs, by shape."""
    set_path(model, fused=fused)
    run, cache = stepper(model, TEXT)
    blocks = cache.pool.allocate(TEXT)
    return {shape: partial(run, [_feed(blocks, shape)]) for shape in SHAPES}


def _costs(steps: dict[str, Step], model: LlamaModel, label: str) -> dict[str, Cost]:
    """Print what steps cost, by shape."""
    found = {}
    for shape, run in steps.items():
        found[shape] = cost = _cost(run, model.row_sampler)
        print(
            f"{shape}, {label}: fed {FED[shape]}, GPU {cost.gpu:.0f} us, with host "
            f"{cost.whole:.0f}, {model.weight_bytes / cost.gpu / 1e3:.0f} GB/s",
            flush=True,
        )
    return found


def _cost(run: Step, sampler: StepSampler | None) -> Cost:
    def chosen() -> object:
        logits = run().logits
        return argmax(on_host(logits)) if sampler is None else sampler.choose(on_device(logits), ())

    whole = [1e3 * host_ms(chosen) for _ in range(ROUNDS)]
    many = 1 if DRY else 10
    gpu = timed_us(lambda: [run() for _ in range(many)]) / many
    return Cost(statistics.median(whole), gpu)


def _kernels(steps: dict[str, Step], layers: int, size: str) -> None:
    """Print which kernels take the time, and record their number and what attention takes."""
    from torch.profiler import ProfilerActivity, profile

    for shape, run in steps.items():
        for _ in range(3):
            run()
        sync()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(STEPS_PROFILED):
                run()
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
        attention = sum(us for us, _, name in rows if name.startswith("attend_"))
        if shape == "AR":
            record(f"kernels a layer, {size}", launched / layers)
        if shape == "7,7,7":
            record(f"attention of 84 tokens, {size}", attention / layers)


def _feed(blocks: tuple[int, ...] | None, shape: str) -> Feed:
    assert blocks is not None
    return step_feed(SHAPES[shape], CONTEXT, blocks)
