"""Opens the torch executor for an engine: weights, K/V cache, draft models, costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtla.runtime.auto.probe import cost_source
from trtla.runtime.drafters.draft_loading import check_draft_engines, load_draft_model
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models.cache_room import CacheNeed, block_bytes, cache_blocks
from trtla.runtime.models.forward import SPARE_BLOCKS, Model
from trtla.runtime.models.load import (
    check_cache_dtype,
    load_engine,
    model_dtype,
    resolve_device,
)
from trtla.runtime.stats import DraftTotals
from trtla.settings.executor import ExecutorOptions

if TYPE_CHECKING:
    from trtla.formats.config import CheckpointConfig
    from trtla.formats.engine import Engine


def open_torch_executor(
    engine: Engine, options: ExecutorOptions, draft_engines: Mapping[str, Engine]
) -> TorchExecutor:
    """Load an engine's weights and make its cache; arguments as in `open_executor`."""
    checkpoint, build = engine.config.pretrained_config, engine.config.build_config
    default = engine.default_triple(options.lookahead)
    batch_size, on = engine.batch_size(options.max_batch_size), resolve_device(options.device)
    limits = ExecutorLimits(
        batch_size,
        build.max_input_len,
        build.max_text_len,
        build.max_num_tokens,
        checkpoint.vocab_size,
        default,
        drafter=options.drafter,
        draft_models=tuple(draft_engines),
        max_encoder_len=engine.max_encoder_len,
    )
    arithmetic = model_dtype(options.dtype, checkpoint, on)
    check_cache_dtype(options.kv_cache_dtype, engine, arithmetic, on)
    place = {
        "device": options.draft_device or options.device,
        "dtype": options.draft_dtype or options.dtype,
    }
    if draft_engines:
        resolve_device(place["device"], "--draft-device")  # what is wrong is said before it loads
    check_draft_engines(draft_engines, checkpoint.vocab_size)
    model = load_engine(engine, arithmetic, on, options.kv_cache_dtype)
    drafts = {name: load_draft_model(one, limits, **place) for name, one in draft_engines.items()}
    longest = max(build.max_seq_len, build.max_text_len + options.drafter.max_draft_len(default))
    block = block_bytes(checkpoint, model.cache_dtype)
    need = CacheNeed(on, block, longest, model.scratch_bytes(limits))
    blocks, *rest = cache_blocks([need, *(one.need for one in drafts.values())], batch_size)
    cache = model.new_cache(blocks + SPARE_BLOCKS)
    totals, sizes = DraftTotals(), dict(zip(drafts, rest, strict=True))
    models = {name: one.with_cache(sizes[name], limits, totals) for name, one in drafts.items()}
    costs = cost_source(engine, lambda: _arithmetic(model), on)
    drafters = Drafters(limits, options.draft_options, models)
    reused = _max_reused_len(checkpoint, limits) if options.block_reuse else 0
    made = (model, cache, limits, drafters, costs, reused, totals, options.draft_options.nodes)
    return TorchExecutor(*made, bounded_steps=options.bounded_steps)


def _arithmetic(model: Model) -> str:
    """What forwards' times depend on; whether there are graphs is known when a first has run."""
    return f"{model.arithmetic}{', ' if model.graphs else ''}{model.graphs}"


def _max_reused_len(checkpoint: CheckpointConfig, limits: ExecutorLimits) -> int:
    """Longest text whose keys serve others: dynamic scaling rotates them by the text's length."""
    if limits.max_encoder_len is not None:  # they depend on what the encoder read as well
        return 0
    if checkpoint.rope_type == "dynamic":
        return min(limits.max_text_len, checkpoint.max_position_embeddings)
    return limits.max_text_len
