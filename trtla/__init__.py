"""trtla: lookahead decoding for Llama models, from a Hugging Face checkpoint to text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtla.errors import CheckFailed, TrtlaError, TrtlaWarning, UsageError
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.lookahead import LookaheadConfig, max_draft_len
from trtla.settings.sampling import BeamSettings, SamplingParams
from trtla.version import __version__

if TYPE_CHECKING:
    from trtla.llm.answer import BeamText
    from trtla.llm.llm import LLM, Chunk, Completion


__all__ = [
    "LLM",
    "BeamSettings",
    "BeamText",
    "CheckFailed",
    "Chunk",
    "Completion",
    "DraftOptions",
    "DrafterSettings",
    "LookaheadConfig",
    "SamplingParams",
    "TrtlaError",
    "TrtlaWarning",
    "UsageError",
    "__version__",
    "max_draft_len",
]

_LAZY = {
    "LLM": "trtla.llm.llm",
    "BeamText": "trtla.llm.answer",
    "Chunk": "trtla.llm.llm",
    "Completion": "trtla.llm.llm",
}


def __getattr__(name: str) -> object:
    """Import what needs torch only when it is asked for (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'trtla' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
