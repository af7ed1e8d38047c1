"""Opening the torch executor for an engine: weights, K/V cache, draft models, costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from trtla.formats.engine import model_digest, text_digest
from trtla.formats.support import shard_config
from trtla.runtime.auto.fixed import FIXED_COSTS, costs_are_fixed
from trtla.runtime.auto.kept import KeptCosts
from trtla.runtime.auto.shipped import shipped_costs
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.device import Device, resolve_device
from trtla.runtime.drafters.custom import CustomDrafters
from trtla.runtime.drafters.draft_model import (
    LoadedDraft,
    check_draft_engines,
    load_draft_model,
)
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.lengths import shortened, text_lengths, usual_output_len, usual_text_len
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.loop.leader import Follower
from trtla.runtime.models.cpu.llama import NativeLlama
from trtla.runtime.models.forward import SPARE_BLOCKS, Model
from trtla.runtime.models.kv_cache import (
    CacheNeed,
    Place,
    block_bytes,
    cache_blocks,
    free_bytes,
    longest_fit,
)
from trtla.runtime.models.load import (
    check_cache_dtype,
    load_engine,
    model_dtype,
    not_compiled,
    read_in,
)
from trtla.runtime.ranks.opening import Ranks, SharedRoom, check_same, joined
from trtla.runtime.stats import DraftTotals
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import OPEN, REBUILD

if TYPE_CHECKING:
    from trtla.formats.config import CheckpointConfig
    from trtla.formats.engine import Engine
    from trtla.formats.heads.head import Head
    from trtla.runtime.ranks.world import World


def open_torch_executor(
    engine: Engine,
    options: ExecutorOptions,
    draft_engines: Mapping[str, Engine],
    heads: Mapping[str, Head],
    world: World | None = None,
    custom: CustomDrafters | None = None,
) -> TorchExecutor | Follower:
    """Load an engine's weights and make its cache; arguments as in `open_executor`.

    Args:
        heads: trained heads by the names that requests give them; they fit the model.
        world: the ranks that run it together, each with its part of the weights, or with all of
            them if `options.lookahead_parallel` is set.
        custom: makes the drafters of the user's own, by their names.
    """
    engine = read_in(engine, options.dtype)
    checkpoint = engine.config.pretrained_config
    limits, on = _limits(engine, options, draft_engines, heads), resolve_device(options.device)
    limits = replace(limits, custom_drafters=tuple(custom or ()))
    arithmetic = model_dtype(options.dtype, checkpoint, on)
    check_cache_dtype(options.kv_cache_dtype, engine, arithmetic, on)
    if draft_engines:
        _check_drafts(draft_engines, options)
    ranks = None if world is None else _ranks(world, engine, options, limits, arithmetic, on)
    split = None if ranks is None else ranks.split
    shortens = engine.is_in_memory and options.max_seq_len is None
    least = min(limits.max_text_len, _LEAST_TEXT) if shortens else limits.max_text_len
    model = load_engine(engine, arithmetic, on, options.kv_cache_dtype, split, least)
    together = "" if ranks is None else ranks.description
    if ranks is not None:
        check_same(ranks.world, {"forward": model.arithmetic})
    drafts = _load_drafts(draft_engines, options)
    loaded = None
    if heads:
        from trtla.runtime.loop.heads import LoadedHeads

        loaded = LoadedHeads(heads, options.found_head, model, checkpoint, arithmetic, on)
        limits = loaded.limits(limits)
    shard = checkpoint if split is None else shard_config(checkpoint, split.world.place.size)
    block = block_bytes(shard, model.cache_type) + (loaded.block_bytes if loaded else 0)
    needs = partial(_needs, engine, _Placed(model, block, on), drafts.values())
    free = free_bytes(needs(limits), 1 if ranks is None else ranks.on_machine)
    if shortens:
        limits = _within_memory(limits, needs, free, ranks)
    blocks, *draft_blocks = cache_blocks(needs(limits), limits.max_batch_size, free)
    if ranks is not None:
        blocks = min(ranks.world.gather(blocks))
    cache = model.new_cache(blocks + SPARE_BLOCKS)
    if ranks is not None and not ranks.world.leads:
        return Follower(ranks, model, cache, limits)
    totals, sizes = DraftTotals(), dict(zip(drafts, draft_blocks, strict=True))
    models = {name: draft.with_cache(sizes[name], limits, totals) for name, draft in drafts.items()}
    drafting = loaded.drafters(blocks + SPARE_BLOCKS) if loaded else None
    drafters = Drafters(limits, options.draft_options, models, drafting, custom)
    reused = _max_reused_len(checkpoint, limits) if options.block_reuse else 0
    costs, keep = _costs(checkpoint, model, together, on)
    parts = (model, cache, limits, drafters, costs, reused, totals)
    return TorchExecutor(*parts, options=options, ranks=ranks, keep=keep)


def _check_drafts(engines: Mapping[str, Engine], options: ExecutorOptions) -> None:
    """Refuse draft models, and their device, before anything is loaded."""
    resolve_device(options.draft_device or options.device, "draft_device")
    check_draft_engines(engines.values())


def _load_drafts(engines: Mapping[str, Engine], options: ExecutorOptions) -> dict[str, LoadedDraft]:
    place = options.draft_device or options.device, options.draft_dtype or options.dtype
    return {name: load_draft_model(engine, *place) for name, engine in engines.items()}


def _costs(
    checkpoint: CheckpointConfig, model: Model[Any], together: str, device: Device
) -> tuple[StepCosts, Callable[[StepCosts], None] | None]:
    """Return the expected costs of steps, and a function that keeps the learnt ones."""
    if costs_are_fixed():
        return StepCosts(FIXED_COSTS), None
    integers = model.compute_type == "int8" if isinstance(model, NativeLlama) else None
    size, kind = model.weight_bytes, model.weight_type
    table = shipped_costs(size, kind, device, integers, model.mixture)
    kept = KeptCosts(checkpoint.model_dump(mode="json"), model.arithmetic + together, device)
    return StepCosts(table, kept.load()), kept.save


def _limits(
    engine: Engine,
    options: ExecutorOptions,
    draft_engines: Mapping[str, Engine],
    heads: Mapping[str, Head],
) -> ExecutorLimits:
    checkpoint, build = engine.config.pretrained_config, engine.config.build_config
    batch_size = engine.batch_size(options.max_batch_size)
    lengths = text_lengths(engine, options.max_seq_len)
    answer = usual_output_len(lengths.max_text_len, batch_size) if engine.is_in_memory else None
    return ExecutorLimits(
        batch_size,
        lengths.max_input_len,
        lengths.max_text_len,
        build.max_num_tokens,
        checkpoint.vocab_size,
        engine.default_triple(options.triple),
        input_len_hint=lengths.input_len_hint,
        text_len_hint=lengths.text_len_hint,
        larger_triples=OPEN if engine.is_in_memory else REBUILD,
        usual_output_len=answer,
        drafter=options.drafter,
        draft_models=tuple(draft_engines),
        heads=tuple(heads),
        max_encoder_len=engine.max_encoder_len,
    )


class _Placed(NamedTuple):
    """A loaded model, the bytes of a block of its cache, and its device."""

    model: Model[Any]
    block_bytes: int
    device: Device


def _needs(
    engine: Engine, placed: _Placed, drafts: Iterable[LoadedDraft], limits: ExecutorLimits
) -> list[CacheNeed]:
    """Compute the caches that the model and its draft models need with these limits."""
    text_len, draft_len = limits.max_text_len, engine.config.build_config.max_draft_len
    draft_len = max(draft_len, limits.drafter.max_draft_len(limits.lookahead))
    usual = usual_text_len(text_len) if engine.is_in_memory else None
    sizes = (placed.block_bytes, text_len + draft_len, placed.model.scratch_bytes(limits))
    target = CacheNeed(placed.device, *sizes, None if usual is None else usual + draft_len)
    return [target, *(draft.need(limits, usual) for draft in drafts)]


def _within_memory(
    limits: ExecutorLimits,
    needs: Callable[[ExecutorLimits], list[CacheNeed]],
    free: Mapping[Place, int],
    ranks: Ranks | None,
) -> ExecutorLimits:
    """Shorten texts to the length that the caches of one have memory for on every rank."""
    most = limits.max_text_len
    target = needs(limits)[0]
    fit = longest_fit(lambda length: needs(replace(limits, max_text_len=length)), most, free)
    if ranks is not None:
        fit = min(ranks.world.gather(fit))
    if fit == most or fit < _LEAST_TEXT:  # which `cache_blocks` refuses
        return limits
    share, token = free[target.place] / 2**30, target.block_bytes / TOKENS_PER_BLOCK / 2**10
    why = f"{target.device} has {share:.1f} GiB for keys and values, at {token:.1f} KiB a token"
    return shortened(limits, fit, why)


_LEAST_TEXT = 256
"""Tokens of the shortest text that a model is opened for if memory is short."""


def _ranks(
    world: World,
    engine: Engine,
    options: ExecutorOptions,
    limits: ExecutorLimits,
    arithmetic: str,
    device: Device,
) -> Ranks:
    """Join the ranks, after checking that all open the same model in the same way."""
    config, whole = engine.config.pretrained_config, options.lookahead_parallel is not None
    same: dict[str, object] = {
        "parallelism": "lookahead" if whole else "tensor",
        "model": model_digest(engine),
        "configuration": text_digest(config.model_dump_json()),
        "arithmetic": arithmetic,
        "type of the K/V cache": options.kv_cache_dtype,
        "kind of device": device.type,
        "largest batch": limits.max_batch_size,
        "longest step": limits.max_num_tokens,
        "longest draft": limits.max_draft_len,
    }
    check_same(world, same)
    if whole:
        return Ranks(world, None, whole=True)
    most = limits.max_num_tokens + limits.max_batch_size * (1 + limits.max_draft_len)
    room = SharedRoom(most, config.hidden_size, most, config.vocab_size)
    shard = shard_config(config, world.place.size)
    return joined(world, room, device.type == "cpu" and not_compiled(shard, arithmetic) is None)


def _max_reused_len(checkpoint: CheckpointConfig, limits: ExecutorLimits) -> int:
    """Return the longest text with reusable keys: those of dynamic RoPE depend on its length."""
    if limits.max_encoder_len is not None:  # keys depend on the encoder's input as well
        return 0
    if checkpoint.rope_type == "dynamic":
        return min(limits.max_text_len, checkpoint.max_position_embeddings)
    return limits.max_text_len
