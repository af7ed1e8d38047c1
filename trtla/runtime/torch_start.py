"""Opens the torch executor for an engine: weights, K/V cache, draft models, costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtla.drafting import LOOKAHEAD, DrafterSettings
from trtla.lookahead import LookaheadConfig
from trtla.runtime.cost_probe import cost_source
from trtla.runtime.device import cache_blocks, resolve_device, resolve_dtype
from trtla.runtime.drafters.factory import Drafters, open_draft_models
from trtla.runtime.drafters.lookahead import LookaheadDrafters
from trtla.runtime.drafters.options import DraftOptions
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.load_model import load_model
from trtla.runtime.step_forward import SPARE_BLOCKS
from trtla.runtime.torch_executor import TorchExecutor

if TYPE_CHECKING:
    from trtla.build.engine import Engine


def open_torch_executor(
    engine: Engine,
    *,
    lookahead: LookaheadConfig | None = None,
    device: str = "auto",
    dtype: str = "auto",
    max_batch_size: int | None = None,
    draft_options: DraftOptions | None = None,
    drafter: DrafterSettings | None = None,
    draft_engines: Mapping[str, Engine] | None = None,
) -> TorchExecutor:
    """Load an engine's weights and make its cache; arguments as in `open_executor`."""
    checkpoint, build = engine.config.pretrained_config, engine.config.build_config
    server, batch_size = engine.server_triple(lookahead), engine.batch_size(max_batch_size)
    settings, on = drafter or LOOKAHEAD, resolve_device(device)
    limits = ExecutorLimits(
        batch_size,
        build.max_input_len,
        build.max_text_len,
        build.max_num_tokens,
        checkpoint.vocab_size,
        server,
        drafter=settings,
        draft_models=tuple(draft_engines or ()),
    )
    arithmetic = resolve_dtype(dtype, checkpoint.dtype, on)
    models = open_draft_models(draft_engines or {}, limits, device, dtype)
    model = load_model(checkpoint, engine.weights(), arithmetic, on)
    longest = max(build.max_seq_len, build.max_text_len + settings.max_draft_len(server))
    blocks = cache_blocks(checkpoint, batch_size, longest, model.cache_dtype, on)
    costs = cost_source(engine, model.arithmetic, on)
    drafters = Drafters(limits, LookaheadDrafters(draft_options or DraftOptions()), models)
    executor = TorchExecutor(model, model.new_cache(blocks + SPARE_BLOCKS), limits, drafters, costs)
    for one in models.values():
        one.totals = executor.stats().draft_models
    return executor
