"""A trained head that is found beside its model drafts, unless a drafter is named."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine import EncoderDecoder, Engine
from trtla.formats.heads.beside import head_beside
from trtla.formats.heads.reading import read_head
from trtla.machine import process_rank
from trtla.settings.drafting import HEAD_PREFIX, LOOKAHEAD, DrafterSettings
from trtla.settings.executor import ExecutorOptions

_log = logging.getLogger(__name__)


def with_found_head(engine: Engine, options: ExecutorOptions) -> ExecutorOptions:
    """Return the options with the head that lies beside a model as its drafter, if one does.

    A head that does not fit is a note, not a failure.
    """
    by_tree = options.lookahead_parallel is None and options.lookahead in (None, "auto")
    drafts = engine.backend != "tensorrt-llm" and not isinstance(engine, EncoderDecoder)
    config = engine.config.pretrained_config
    looks = options.finds_head and by_tree and drafts
    drafter = found_drafter(engine.path, config, options.boundaries) if looks else None
    if drafter is None:
        return options
    _note(f"the trained head {drafter.head} drafts; the drafter lookahead goes without")
    return replace(options, drafter=drafter)


def found_drafter(
    model: Path, config: CheckpointConfig, boundaries: tuple[int, ...] | None
) -> DrafterSettings | None:
    """Return lookahead with the head that lies beside a model; None: there is none that fits.

    Args:
        model: its folder, which of a GGUF file is the one in the user's cache.
        boundaries: those of `--head-layers`; None: the head's own.
    """
    path = head_beside(model, config)
    if path is None:
        return None
    try:
        read_head(path, boundaries, config)
    except UsageError as error:
        _note(f"the head beside the model does not draft: {error.message}")
        return None
    return DrafterSettings((*LOOKAHEAD.drafter, f"{HEAD_PREFIX}{path}"))


def _note(text: str) -> None:
    if not process_rank():
        _log.warning("note: %s", text)
