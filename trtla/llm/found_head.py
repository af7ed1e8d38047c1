"""A trained head that is found beside its model drafts, unless a drafter is named."""

from __future__ import annotations

import logging
from dataclasses import replace

from trtla.errors import UsageError
from trtla.formats.engine import EncoderDecoder, Engine
from trtla.formats.heads.beside import head_beside
from trtla.machine import process_rank
from trtla.runtime.limits import ExecutorLimits
from trtla.settings.drafting import HEAD_PREFIX, LOOKAHEAD, DrafterSettings
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE

_log = logging.getLogger(__name__)
_DOES_NOT = "the head beside the model does not draft"


def with_found_head(engine: Engine, options: ExecutorOptions) -> ExecutorOptions:
    """Return the options with the head that lies beside a model as its `found_head`, if one does.

    A head that does not fit is a note, not a failure.
    """
    without = replace(options, find_head=False)
    config = engine.config.pretrained_config
    looks = options.finds_head and _drafts_by_tree(options) and _has_room(engine)
    path = head_beside(engine.folder, config) if looks else None
    if path is None:
        return without
    from trtla.formats.heads.reading import read_head

    try:
        head = read_head(path, options.boundaries, config)
    except UsageError as error:
        _note(f"{_DOES_NOT}: {error.message}")
        return without
    if "lm_head" not in head.tensors and (options.tp_size or 1) > 1:
        _note(f"{path} does not draft: it has no lm_head, and ranks have parts of the model's")
        return without
    names = (*LOOKAHEAD.drafter, f"{HEAD_PREFIX}{path}")
    return replace(options, drafter=replace(options.drafter, drafter=names), find_head=True)


def _drafts_by_tree(options: ExecutorOptions) -> bool:
    """Return True if a candidate tree drafts that takes a head's tokens."""
    how = options.draft_options
    adaptive = options.lookahead_parallel is None and options.lookahead in (None, "auto")
    return adaptive and "head" in how.sources and how.nodes != 0


def _has_room(engine: Engine) -> bool:
    """Return True for a decoder that runs here, and has room for drafts."""
    runs = engine.backend != "tensorrt-llm" and not isinstance(engine, EncoderDecoder)
    return runs and (engine.is_in_memory or engine.lookahead != AUTOREGRESSIVE)


def opened_drafter(options: ExecutorOptions, limits: ExecutorLimits) -> DrafterSettings:
    """Return the drafter of an open model's requests, and note what a found head does.

    Args:
        options: of `with_found_head`.
        limits: of the model that was opened with them.
    """
    if options.found_head is None:
        return options.drafter
    drafts = f"the trained head {options.found_head} drafts; the drafter lookahead goes without it"
    _note(f"{_DOES_NOT}: {limits.head_problem}" if limits.head_problem else drafts)
    return limits.drafter


def _note(text: str) -> None:
    if not process_rank():
        _log.warning("note: %s", text)
