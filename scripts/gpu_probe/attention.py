"""Sections `check` and `mini` of scripts/gpu_probe: the paged kernels against float64."""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass

import torch
from gpu_probe.device import DEVICE, DRY, DTYPE
from gpu_probe.feeds import SHAPES, packed, prompt_feed, random_model, set_path, step_feed, stepper
from gpu_probe.figures import BY_NAME, record
from torch import Tensor

from trtla.formats.torch_tensors import E4M3, quantize
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.attention import AttentionGroup
from trtla.runtime.models.batch import make_batch
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import PagedGroup, paged_attend
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sequence import Feed

KV_HEADS, FP8_SCALE = 2, 0.013


@dataclass(frozen=True)
class Heads:
    """A head size, query heads of a K/V head, and whether trees read single stretches."""

    size: int
    group_size: int
    split: bool | None = None


HEADS = {
    "bfloat16": (Heads(128, 4), Heads(128, 4, split=True), Heads(64, 4)),
    "float16": (Heads(128, 4),),
    "float32": (Heads(128, 4), Heads(64, 2, split=False)),
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
    HEADS = {"float32": (Heads(16, 2, split=True),)}
    STEPS = (("7,7,7", [3, 20]), ("prompt", [20]))
    PROMPT, PADDING = 5, 2


def check(dtype_name: str) -> None:
    """Attention and a model of one type."""
    dtype, name = getattr(torch, dtype_name), f"attention over pages, {dtype_name}"
    errors = [
        _error(dtype, heads, shape, cached, BY_NAME[name].most)
        for heads in HEADS[dtype_name]
        for shape, cached in STEPS
    ]
    record(name, max(errors))
    if dtype_name == "bfloat16":
        error = relative_error(dtype, Heads(128, 4), "7,7,7", [1000], fp8=True)
        record("attention over an FP8 cache", error)
    if dtype_name != "float16":
        record(f"logits of graphs, {dtype_name}", compare_models(dtype))


def _error(dtype: torch.dtype, heads: Heads, shape: str, cached: list[int], most: object) -> float:
    """The relative error, infinite where the kernels fail; printed where it is too large."""
    case = (dtype, heads, shape, cached)
    try:
        error = relative_error(*case)
    except Exception:  # the other cases are still worth knowing
        print("FAIL", *case)
        traceback.print_exc(limit=3)
        return math.inf
    if isinstance(most, float) and error > most:
        print("WRONG", *case, f"relative error {error:.1e}")
    return error


def mini() -> None:
    """Few launches, for compute-sanitizer."""
    heads = Heads(16, 2, split=True) if DRY else Heads(128, 4, split=True)
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
        expected = torch.cat([g.attend(queries[g.rows].double(), *exact.layer(0)) for g in groups])
        parts = [
            paged_attend(queries[g.rows], *cache.layer(0), g, cache.scale(0), heads.split)
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


def _caches(
    dtype: torch.dtype, size: int, num_blocks: int, fp8: bool
) -> tuple[TensorCache, TensorCache]:
    """A cache of random numbers with a block to spare, and the same numbers in float64."""
    exact = TensorCache(1, KV_HEADS, size, num_blocks + 1, torch.float64, DEVICE)
    if not fp8:
        cache = TensorCache(1, KV_HEADS, size, num_blocks + 1, dtype, DEVICE)
        cache.data.normal_()
        exact.data.copy_(cache.data)
        return cache, exact
    cache = TensorCache(1, KV_HEADS, size, num_blocks + 1, dtype, DEVICE, [FP8_SCALE])
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


def compare_models(dtype: torch.dtype) -> float:
    """The worst error of a step's logits by graphs, unfused and fused, behind a real prompt."""
    model, worst = random_model("small", dtype), 0.0
    for shape in ("AR", "7,7,7"):
        set_path(model, fused=False)
        expected = _logits(model, shape, graphs=False)
        for fused in (False, True):
            set_path(model, fused=fused)
            found = _logits(model, shape, graphs=True)
            error = _distance(found, expected)
            equal = float((found.argmax(-1) == expected.argmax(-1)).float().mean())
            label = f"{shape}, {'fused' if fused else 'unfused'}"
            print(f"model {label}: error {error:.1e}, argmax equal {equal:.2f}", flush=True)
            worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def _logits(model: LlamaModel, shape: str, *, graphs: bool) -> Tensor:
    """Of a step after a prompt, packed or by graphs, which run three times."""
    run, cache = stepper(model, 400) if graphs else packed(model, 400)
    blocks = cache.pool.allocate(300)
    assert blocks is not None
    run([prompt_feed(0, PROMPT, blocks)])
    feed = step_feed(SHAPES[shape], PROMPT, blocks)
    found = [run([feed]).logits for _ in range(3 if graphs and not DRY else 1)][-1]
    return torch.tensor(on_host(found))
