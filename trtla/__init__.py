"""trtla: lookahead decoding for Llama models, from a Hugging Face checkpoint to text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtla.drafting import DrafterSettings
from trtla.errors import CheckFailed, TrtlaError, UsageError
from trtla.lookahead import LookaheadConfig, max_draft_len

if TYPE_CHECKING:
    from trtla.runtime.beam import BeamSettings
    from trtla.runtime.beam_text import BeamText
    from trtla.runtime.drafters.options import DraftOptions
    from trtla.runtime.executor import SamplingParams
    from trtla.runtime.llm import LLM, Chunk, Completion

__version__ = "0.1.0"

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
    "UsageError",
    "__version__",
    "max_draft_len",
]

_LAZY = {
    "LLM": "trtla.runtime.llm",
    "BeamSettings": "trtla.runtime.beam",
    "BeamText": "trtla.runtime.beam_text",
    "Chunk": "trtla.runtime.llm",
    "Completion": "trtla.runtime.llm",
    "DraftOptions": "trtla.runtime.drafters.options",
    "SamplingParams": "trtla.runtime.executor",
}


def __getattr__(name: str) -> object:
    """Import what needs torch only when it is asked for (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'trtla' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
