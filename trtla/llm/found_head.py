"""A trained head that is found beside its model drafts, unless a drafter is named."""

from __future__ import annotations

import logging
from dataclasses import replace

from trtla.errors import UsageError
from trtla.formats.engine import EncoderDecoder, Engine
from trtla.formats.heads.beside import head_beside
from trtla.machine import process_rank
from trtla.settings.drafting import HEAD_PREFIX, LOOKAHEAD
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE

_log = logging.getLogger(__name__)


def with_found_head(engine: Engine, options: ExecutorOptions) -> ExecutorOptions:
    """Return the options with the head that lies beside a model as its drafter, if one does.

    A head that does not fit is a note, not a failure.
    """
    by_tree = options.lookahead_parallel is None and options.lookahead in (None, "auto")
    drafts = engine.backend != "tensorrt-llm" and not isinstance(engine, EncoderDecoder)
    drafts = drafts and (engine.is_in_memory or engine.lookahead != AUTOREGRESSIVE)
    config = engine.config.pretrained_config
    path = head_beside(engine.folder, config) if options.finds_head and by_tree and drafts else None
    if path is None:
        return options
    from trtla.formats.heads.reading import read_head

    try:
        head = read_head(path, options.boundaries, config)
    except UsageError as error:
        _note(f"the head beside the model does not draft: {error.message}")
        return options
    if "lm_head" not in head.tensors and (options.tp_size or 1) > 1:
        _note(f"{path} does not draft: it has no lm_head, and ranks have parts of the model's")
        return options
    _note(f"the trained head {path} drafts; the drafter lookahead goes without it")
    names = (*LOOKAHEAD.drafter, f"{HEAD_PREFIX}{path}")
    return replace(options, drafter=replace(options.drafter, drafter=names))


def _note(text: str) -> None:
    if not process_rank():
        _log.warning("note: %s", text)
