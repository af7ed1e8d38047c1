"""The forwards behind a cost table: made-up sequences in free blocks, on the real model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import trtla
from trtla.lookahead import AUTOREGRESSIVE
from trtla.runtime.batch import Feed
from trtla.runtime.cost_table import CostPlan, CostTable, get
from trtla.runtime.cost_timing import Forward, device_clock, measure, thread_clock
from trtla.runtime.draft import Draft
from trtla.runtime.drafters.lookahead import NoDrafter
from trtla.runtime.executor import Request
from trtla.runtime.kv_cache import TOKENS_PER_BLOCK, KVCache
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.sequence import Sequence
from trtla.runtime.step_forward import StepForward
from trtla.user_cache import user_cache

if TYPE_CHECKING:
    from trtla.build.engine import Engine

_PLAN = CostPlan()


def measure_costs(
    run: StepForward, cache: KVCache, limits: ExecutorLimits, plan: CostPlan = _PLAN
) -> CostTable | None:
    """Time forwards as the executor runs its steps, for up to the limits' number of sequences.

    Some 2 s for a small model. Takes free blocks of the cache and gives them back; what runs
    meanwhile is not touched. None: no blocks are free now.
    """
    fitted = fitted_plan(plan, cache, limits)
    owned: list[tuple[int, ...]] = []
    while len(owned) < fitted.batches[-1]:
        blocks = cache.pool.allocate(fitted.context + fitted.sizes[-1])
        if blocks is None:
            break
        owned.append(blocks)
    try:
        if not owned:
            return None
        fitted = replace(fitted, batches=_up_to(len(owned), fitted.batches))
        forward = _forward(run, owned, fitted.context, limits.max_encoder_len is not None)
        clock = thread_clock if cache.device.type == "cpu" else device_clock
        return measure(forward, fitted, clock)
    finally:
        for blocks in owned:
            cache.pool.release(blocks)


def measured_costs(
    run: StepForward, cache: KVCache, limits: ExecutorLimits, sequences: int
) -> CostTable | None:
    """`measure_costs` for steps of up to a number of sequences, remembered by nobody."""
    plan = replace(_PLAN, batches=rows_for(sequences, _PLAN.batches))
    return measure_costs(run, cache, limits, plan)


def rows_for(sequences: int, batches: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of sequences to time, up to the first that is not below the one asked for."""
    pairs = zip(batches, (0, *batches), strict=False)
    return tuple(count for count, before in pairs if before < sequences)


def fitted_plan(plan: CostPlan, cache: KVCache, limits: ExecutorLimits) -> CostPlan:
    """What of a plan an executor can run, and all sizes that its adaptive steps can have."""
    step, most = 1 + limits.lookahead.max_draft_len, limits.max_num_tokens
    context = max(1, min(plan.context, limits.max_text_len // 2))
    room = max(step, limits.max_text_len + limits.lookahead.max_draft_len - context)
    sizes = tuple(sorted({*(size for size in plan.sizes if size <= room), step}))
    each = -(-(context + sizes[-1]) // TOKENS_PER_BLOCK)
    sequences = max(1, min(limits.max_batch_size, cache.pool.num_blocks // each))
    return replace(
        plan,
        batches=_up_to(sequences, plan.batches),
        sizes=sizes,
        most_tokens=min(plan.most_tokens, most),
        context=context,
        needed=step,
        max_tokens=most,
    )


def _up_to(most: int, batches: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count for count in batches if count <= most) or (most,)


def _forward(
    run: StepForward, owned: list[tuple[int, ...]], context: int, encodes: bool
) -> Forward:
    text = (0,) * context
    request = Request(0, text, encoder_ids=text if encodes else None)

    def forward(sequences: int, each: int) -> None:
        draft = Draft((0,) * (each - 1), tuple(range(each - 1)))
        feeds = []
        for blocks in owned[:sequences]:
            sequence = Sequence(request, AUTOREGRESSIVE, NoDrafter(), [0], context, blocks)
            feeds.append(Feed.step(sequence, draft))
        run(feeds).argmax(dim=-1).tolist()

    return forward


def cost_key(engine: Engine, arithmetic: str, device: torch.device) -> str:
    """What a forward's time depends on: the model's shape, arithmetic, device, threads, library.

    The weights' values do not matter, so all engines of a shape share a table.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    facts = {
        "shape": engine.config.pretrained_config.model_dump(mode="json"),
        "arithmetic": arithmetic,
        "device": [device.type, name],
        "threads": torch.get_num_threads(),
        "versions": [torch.__version__, trtla.__version__],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def cost_source(
    engine: Engine, arithmetic: str, device: torch.device
) -> Callable[[StepForward, KVCache, ExecutorLimits, int], CostTable | None]:
    """An engine's table, from a file in the engine's folder or the user's, or measured now.

    Only what the number of sequences asked for needs is measured: others may never come. A Hugging
    Face folder is never written to. None: it cannot be measured now.
    """
    folders: list[Path] = [engine.path] if engine.manifest is not None else []
    folders.append(user_cache())

    def source(
        run: StepForward, cache: KVCache, limits: ExecutorLimits, sequences: int
    ) -> CostTable | None:
        key, plan = cost_key(engine, arithmetic, device), fitted_plan(_PLAN, cache, limits)
        wanted = replace(plan, batches=rows_for(sequences, plan.batches))
        return get(key, folders, wanted, lambda missing: measure_costs(run, cache, limits, missing))

    return source
