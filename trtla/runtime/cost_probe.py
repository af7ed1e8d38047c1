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
from trtla.runtime.cost_table import CostPlan, CostTable, Forward, get, measure
from trtla.runtime.draft import Draft
from trtla.runtime.drafters.lookahead import NoDrafter
from trtla.runtime.executor import Request
from trtla.runtime.kv_cache import KVCache
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.sequence import Sequence
from trtla.runtime.step_forward import StepForward
from trtla.user_cache import user_cache

if TYPE_CHECKING:
    from trtla.build.engine import Engine

_PLAN = CostPlan()


def measure_costs(
    run: StepForward, cache: KVCache, limits: ExecutorLimits, plan: CostPlan = _PLAN
) -> CostTable:
    """Time forwards as the executor runs its steps, for up to the limits' number of sequences.

    Some 2 s for a small model. Takes free blocks of the cache and gives them back; what runs
    meanwhile is not touched.
    """
    context = max(1, min(plan.context, limits.max_text_len // 2))
    room = limits.max_text_len + limits.lookahead.max_draft_len - context
    sizes = tuple(size for size in plan.sizes if size <= room) or (1,)
    owned: list[tuple[int, ...]] = []
    while len(owned) < min(plan.batches[-1], limits.max_batch_size):
        blocks = cache.pool.allocate(context + sizes[-1])
        if blocks is None:
            break
        owned.append(blocks)
    try:
        if not owned:  # all in use: as if each token cost the same, which drafts nothing
            return CostTable.of([(1, 1.0), (2, 2.0)])
        batches = tuple(count for count in plan.batches if count <= len(owned)) or (len(owned),)
        most = min(plan.most_tokens, limits.max_num_tokens)
        fitting = replace(plan, batches=batches, sizes=sizes, most_tokens=most)
        encodes = limits.max_encoder_len is not None
        return measure(_forward(run, owned, context, encodes), fitting)
    finally:
        for blocks in owned:
            cache.pool.release(blocks)


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
    """What the time of a forward hangs on: the model's shape, arithmetic, device, threads, library.

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
) -> Callable[[StepForward, KVCache, ExecutorLimits], CostTable]:
    """An engine's table, from a file in the engine's folder or the user's, or measured now.

    A Hugging Face folder is never written to.
    """
    folders: list[Path] = [engine.path] if engine.manifest is not None else []
    folders.append(user_cache())

    def source(run: StepForward, cache: KVCache, limits: ExecutorLimits) -> CostTable:
        key = cost_key(engine, arithmetic, device)
        return get(key, folders, lambda: measure_costs(run, cache, limits))

    return source
