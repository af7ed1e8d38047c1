"""Sections `check` and `mini` of scripts/gpu_probe.py: the paged kernels against float64."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpu_probe_device import DEVICE, DRY, DTYPE, new_capture
from gpu_probe_feeds import SHAPES, prompt_feed, random_model, step_feed
from gpu_probe_fused import Fused
from torch import Tensor

from trtla.formats.tensors import E4M3, quantize
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.attention import AttentionGroup, attend
from trtla.runtime.models.batch import Forwarded, make_batch
from trtla.runtime.models.cuda.graphs import GraphRunner
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import PagedGroup, paged_attend
from trtla.runtime.models.kv_cache import Fp8KVCache, KVCache
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed

KV_HEADS, FP8_SCALE = 2, 0.013
BOUNDS = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.5e-2}
"""Relative errors that rounding explains."""


@dataclass(frozen=True)
class Heads:
    """A head size, query heads of a K/V head, and into how many parts a context is cut."""

    size: int
    group_size: int
    splits: int | None = None


HEADS = {
    "bfloat16": (Heads(128, 4), Heads(128, 4, splits=8), Heads(64, 4)),
    "float16": (Heads(128, 4),),
    "float32": (Heads(128, 4), Heads(64, 2, splits=1)),
}
STEPS: tuple[tuple[str, list[int]], ...] = (
    ("AR", [1]),
    ("AR", [63, 64, 65, 1000]),
    ("7,7,7", [0]),
    ("7,7,7", [1000]),
    ("7,7,7", [31, 700, 33]),
    ("15,5,15", [4097]),
    ("prompt", [0]),
    ("prompt", [100]),
)
"""What is fed, and how many tokens each sequence has cached."""
PROMPT, PADDING = 150, 13
if DRY:
    HEADS = {"float32": (Heads(16, 2, splits=2),)}
    STEPS = (("7,7,7", [31, 40]), ("prompt", [20]))
    PROMPT, PADDING = 5, 2


def check(name: str = "") -> None:
    """Attention and a model of one type, or of all.

    Raises:
        ArithmeticError: an error is larger than rounding explains; raised after all were tried.
    """
    wrong = 0
    for dtype_name in [name] if name else HEADS:
        dtype, bound = getattr(torch, dtype_name), BOUNDS[dtype_name]
        errors = [
            _error(dtype, heads, shape, cached)
            for heads in HEADS[dtype_name]
            for shape, cached in STEPS
        ]
        wrong += sum(error >= bound for error in errors)
        found = f"against float64 {max(errors):.1e} (bound {bound:.0e})"
        print(f"attention {dtype_name}: worst relative error {found}", flush=True)
        if dtype_name == "bfloat16":
            error = relative_error(dtype, Heads(128, 4), "7,7,7", [1000], fp8=True)
            print(f"FP8 cache: {error:.1e}", flush=True)
        if dtype_name != "float16":
            compare_models(dtype)
    if wrong:
        raise ArithmeticError(f"{wrong} results of the kernels are wrong")


def _error(dtype: torch.dtype, heads: Heads, shape: str, cached: list[int]) -> float:
    """The relative error, infinite where the kernels fail; printed where it is too large."""
    case = (dtype, heads, shape, cached)
    try:
        error = relative_error(*case)
    except Exception:  # the other cases are still worth knowing
        print("FAIL", *case)
        traceback.print_exc(limit=3)
        return math.inf
    if error >= BOUNDS[str(dtype)[6:]]:
        print("WRONG", *case, f"relative error {error:.1e}")
    return error


def mini() -> None:
    """Few launches, for compute-sanitizer."""
    heads = Heads(16, 2, splits=2) if DRY else Heads(128, 4, splits=4)
    cached = [3, 40] if DRY else [70, 300]
    for shape in ("AR", "7,7,7"):
        print(shape, f"{relative_error(DTYPE, heads, shape, cached):.1e}")


def relative_error(
    dtype: torch.dtype, heads: Heads, shape: str, cached: list[int], fp8: bool = False
) -> float:
    """The largest relative error of the kernels' outputs, with and without padding."""
    feeds, num_blocks = _feeds(shape, cached)
    cache, exact = _caches(dtype, heads.size, num_blocks, fp8)
    packed = make_batch(feeds, exact, heads.group_size, torch.float64).groups
    groups = [group for group in packed if isinstance(group, AttentionGroup)]
    used, rooms = sum(feed.length for feed in feeds), [Room.of(feeds)]
    if shape != "prompt":
        rooms.append(_padded(rooms[0], used + PADDING, len(feeds) + 1))
    worst = 0.0
    for room in rooms:
        batch = StepInputs(room, num_blocks, DEVICE).fill(feeds)
        size = (len(batch.tokens), KV_HEADS * (heads.group_size + 2), heads.size)
        queries = torch.randn(size, device=DEVICE, dtype=dtype)[:, : KV_HEADS * heads.group_size]
        expected = torch.cat([attend(queries[g.rows].double(), *exact.layer(0), g) for g in groups])
        parts = [
            paged_attend(queries[g.rows], *cache.layer(0), g, cache.scale(0), heads.splits)
            for g in batch.groups
            if isinstance(g, PagedGroup)
        ]
        error = _distance(torch.cat(parts)[:used], expected)
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def _feeds(shape: str, cached: list[int]) -> tuple[list[Feed], int]:
    """The feeds and how many blocks they lie in, whose order is mixed where it can be."""
    feeds, start = [], 0
    for count in cached:
        need = -(-(count + 200) // TOKENS_PER_BLOCK)
        stride = 7 if need % 7 else 1
        blocks = tuple(start + stride * index % need for index in range(need))
        if shape == "prompt":
            feeds.append(prompt_feed(count, PROMPT, blocks))
        else:
            feeds.append(step_feed(SHAPES[shape], count, blocks))
        start += need
    return feeds, start


def _caches(dtype: torch.dtype, size: int, num_blocks: int, fp8: bool) -> tuple[KVCache, KVCache]:
    """A cache of random numbers with a block to spare, and the same numbers in float64."""
    exact = KVCache(1, KV_HEADS, size, num_blocks + 1, torch.float64, DEVICE)
    if not fp8:
        cache = KVCache(1, KV_HEADS, size, num_blocks + 1, dtype, DEVICE)
        cache.data.normal_()
        exact.data.copy_(cache.data)
        return cache, exact
    cache = Fp8KVCache(1, KV_HEADS, size, num_blocks + 1, [FP8_SCALE], DEVICE)
    numbers = torch.randn(cache.data.shape, device=DEVICE)
    cache.data.copy_(quantize(numbers, torch.tensor(FP8_SCALE, device=DEVICE)).view(torch.uint8))
    exact.data.copy_(cache.data.view(E4M3).float() * FP8_SCALE)
    return cache, exact


def _padded(room: Room, tokens: int, batch: int) -> Room:
    """Room for more tokens and sequences than there are, as a graph has."""
    longest = min(tokens, room.longest_tree + 3 * PADDING)
    context = 512 if DRY else 8192
    blocks = context // TOKENS_PER_BLOCK
    return Room(tokens, 0, tokens, 0, batch, 0, longest, blocks, context)


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def compare_models(dtype: torch.dtype) -> None:
    """Logits of packed, graph and fused steps, with a real prompt in the cache."""
    model = random_model("small", dtype)
    for shape in ("AR", "7,7,7"):
        outs = {
            "packed": _logits(model, shape, None),
            "graph": _logits(model, shape, model.forward_batch),
            "fused": _logits(model, shape, Fused(model).forward_batch),
        }
        expected = outs["packed"]
        errors = {way: f"{_distance(found, expected):.1e}" for way, found in outs.items()}
        best = expected.argmax(-1)
        equal = {
            way: f"{float((found.argmax(-1) == best).float().mean()):.2f}"
            for way, found in outs.items()
        }
        print("model", str(dtype)[6:], shape, errors, "argmax equal", equal)


def _logits(model: LlamaModel, shape: str, forward: Callable[..., Forwarded] | None) -> Tensor:
    """Of a step after a prompt of 70 tokens: packed without `forward`, else by graphs of it."""
    torch.manual_seed(1)
    cache = model.new_cache(20)
    cache.data.zero_()
    blocks = cache.pool.allocate(400)
    assert blocks is not None
    model.forward([prompt_feed(0, 70, blocks)], cache)
    feed = step_feed(SHAPES[shape], 70, blocks)
    if forward is None:
        return model.forward([feed], cache).logits
    runner = GraphRunner(forward, cache, 1, 100, 400, new_capture())
    logits = [runner([feed]).logits for _ in range(1 if DRY else 3)][-1].clone()
    if runner.problem:
        print("capture failed:", runner.problem)
    return logits
