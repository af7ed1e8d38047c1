"""Section `step` of scripts/gpu_probe.py: what a decoding step costs, and which kernels take it."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable

from gpu_probe_device import DRY, DTYPE, enable_cudnn, host_ms, new_capture, sync, timed_us
from gpu_probe_feeds import SHAPES, random_model, step_feed
from gpu_probe_fused import Fused
from torch import Tensor

from trtla.runtime.draft import Draft
from trtla.runtime.models.cuda.graphs import GraphRunner
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed

Forward = Callable[..., Tensor]
CONTEXT, TEXT = (20, 100) if DRY else (700, 2000)
BUCKET_ROOM = 16
"""Tokens that a padded bucket has beyond the step's."""


def step(size: str = "") -> None:
    """Eager and graph steps of random models, against plain decoding.

    Raises:
        RuntimeError: a way to step failed; raised after all were tried.
    """
    failed = sum(_size(name) for name in ([size] if size else ("1B",) if DRY else ("1B", "8B")))
    if failed:
        raise RuntimeError(f"{failed} ways to step failed")


def _size(name: str) -> int:
    """Print a size's figures; how many ways failed."""
    model = random_model(name, DTYPE)
    print(f"--- {name}: {model.weight_bytes / 1e9:.2f} GB a step; context {CONTEXT}")
    cache, fused, failed = model.new_cache(80), Fused(model), 0
    taken: dict[str, dict[str, float]] = {}
    for shape, draft in SHAPES.items():
        for cudnn in (True, False):
            _eager(model, cache, draft, shape, cudnn)
        longest = 1 if shape == "AR" else draft.size
        for way, forward, tokens in (
            ("graph, padded bucket", model.forward_batch, longest + BUCKET_ROOM),
            ("graph, exact bucket", model.forward_batch, longest),
            ("graph, [out,in] + fused", fused.forward_batch, longest),
        ):
            try:
                found = _graph(way, forward, cache, draft, tokens, model.weight_bytes)
            except Exception:  # the other ways are still worth knowing
                failed += 1
                traceback.print_exc(limit=4)
                continue
            taken.setdefault(way, {})[shape] = found
    _print_ratios(name, taken)
    if not DRY:
        for shape in ("AR", "7,7,7"):
            for way, forward in (("model", model.forward_batch), ("fused", fused.forward_batch)):
                _profile(forward, cache, SHAPES[shape], f"{name} {shape} {way}")
    return failed


def _print_ratios(name: str, taken: dict[str, dict[str, float]]) -> None:
    for way, found in taken.items():
        if plain := found.get("AR"):
            ratios = {shape: f"{time / plain:.3f}" for shape, time in found.items()}
            most = {shape: f"{plain / time:.3f}" for shape, time in found.items()}
            print(f"{name} {way}: step against AR: {ratios} -> efficiency at most {most}")


def _eager(model: LlamaModel, cache: KVCache, draft: Draft, shape: str, cudnn: bool) -> None:
    enable_cudnn(cudnn)
    feed, times = _feed(cache, draft), []

    def run() -> None:
        model.forward([feed], cache).logits.argmax(-1).tolist()

    for index in range(2 if DRY else 16):
        # A new length in every step, as in decoding.
        feed.sequence.num_cached = CONTEXT + index + (0 if cudnn else 20)
        times.append(host_ms(run))
    enable_cudnn(True)
    cache.pool.release(feed.sequence.blocks)
    found = statistics.median(times[0 if DRY else 3 :])
    label = "as it is" if cudnn else "cuDNN off"
    print(f"{shape}: eager, {label} {found:.2f} ms a step", flush=True)


def _graph(
    way: str, forward: Forward, cache: KVCache, draft: Draft, tokens: int, weight_bytes: int
) -> float:
    """Print a graph's figures; microseconds of a step with its host time."""
    runner = GraphRunner(forward, cache, 1, tokens, TEXT + 48, new_capture())
    feed = _feed(cache, draft)
    first = host_ms(lambda: runner([feed]))
    graph = next((graph for graph in runner._graphs.values() if graph), None)
    if graph is None:
        raise RuntimeError(f"capture failed: {runner.problem}")
    gpu = timed_us(graph.replay, rounds=30)
    rounds = 1 if DRY else 40
    wall = [1e3 * host_ms(lambda: runner([feed]).logits.argmax(-1).tolist()) for _ in range(rounds)]
    fills = [1e3 * host_ms(lambda: graph.inputs.fill([feed]), waits=False) for _ in range(10)]
    cache.pool.release((runner._scratch, *feed.sequence.blocks))
    whole, fill = statistics.median(wall), statistics.median(fills)
    print(
        f"  {way}: fed {feed.length} in {graph.inputs.room.tokens}, GPU {gpu:.0f} us, with host "
        f"{whole:.0f} us (fill {fill:.0f}), {weight_bytes / gpu / 1e3:.0f} GB/s, "
        f"first call {first / 1e3:.1f} s",
        flush=True,
    )
    return whole


def _profile(forward: Forward, cache: KVCache, draft: Draft, title: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    feed = _feed(cache, draft)
    runner = GraphRunner(forward, cache, 1, feed.length, TEXT + 48, new_capture())
    for _ in range(3):
        runner([feed])
    sync()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            runner([feed])
        sync()
    cache.pool.release((runner._scratch, *feed.sequence.blocks))
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    count, busy = sum(row.count for row in rows), sum(row.self_device_time_total for row in rows)
    print(f"[{title}] {count / 5:.0f} kernels, {busy / 5:.0f} us busy")
    for row in rows[:9]:
        taken = row.self_device_time_total / 5
        print(f"    {taken:8.1f} us  x{row.count / 5:<5.0f} {row.key[:100]}")


def _feed(cache: KVCache, draft: Draft) -> Feed:
    blocks = cache.pool.allocate(TEXT)
    assert blocks is not None
    return step_feed(draft, CONTEXT, blocks)
