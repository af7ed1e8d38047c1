"""Loads draft models: first their weights, and their caches when those of all models are sized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.errors import UsageError, trtllm_cannot
from trtla.runtime.drafters.draft_model import STEP_SIZES, DraftModelDrafters, draft_limits
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.forward import SPARE_BLOCKS, Model
from trtla.runtime.models.kv_cache import CacheNeed, block_bytes
from trtla.runtime.models.load import load_engine, model_dtype, resolve_device
from trtla.runtime.stats import DraftTotals

if TYPE_CHECKING:
    from trtla.formats.engine import Engine


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model without a cache."""

    model: Model
    need: CacheNeed

    def with_cache(
        self, num_blocks: int, limits: ExecutorLimits, totals: DraftTotals | None = None
    ) -> DraftModelDrafters:
        """What makes drafters, with a cache of its own; arguments as of `DraftModelDrafters`."""
        cache = self.model.new_cache(num_blocks + SPARE_BLOCKS)
        return DraftModelDrafters(self.model, cache, limits.drafter, limits, totals)


def check_draft_engines(engines: Mapping[str, Engine], vocab_size: int) -> None:
    """Refuse what cannot draft for a target, before anything is loaded.

    Args:
        engines: by the path that `draft:PATH` names.
        vocab_size: the target's.

    Raises:
        UsageError: the vocabularies differ, or an engine is TensorRT-LLM's.
    """
    for engine in engines.values():
        own = engine.config.pretrained_config.vocab_size
        if own != vocab_size:
            raise UsageError(
                f"the draft model has {own} tokens, the model {vocab_size}",
                "use a draft model with the same tokenizer",
            )
        if engine.backend == "tensorrt-llm":
            raise trtllm_cannot(
                engine.name,
                "which cannot draft for another",
                "give the draft model's Hugging Face folder, or build it with --backend torch",
            )


def load_draft_model(
    engine: Engine, limits: ExecutorLimits, *, device: str = "auto", dtype: str = "auto"
) -> LoadedDraft:
    """Load a draft model's weights.

    Args:
        engine: one that `check_draft_engines` has let pass; its own limits do not count.
        limits: those of the target's executor.
        device: auto, cpu, cuda or cuda:N; it may be another than the target's.
        dtype: auto (the engine's), float32, bfloat16 or float16.

    Raises:
        UsageError: the device or the type is not there.
    """
    checkpoint, on = engine.config.pretrained_config, resolve_device(device, "--draft-device")
    model = load_engine(engine, model_dtype(dtype, checkpoint, on), on)
    block = block_bytes(checkpoint, model.cache_dtype)
    scratch = model.scratch_bytes(draft_limits(limits), STEP_SIZES)
    return LoadedDraft(model, CacheNeed(on, block, limits.max_text_len, scratch))
