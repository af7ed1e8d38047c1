"""trtla: lookahead decoding for Llama models, from a Hugging Face checkpoint to text."""

from __future__ import annotations

from trtla.version import __version__

TYPE_CHECKING = False  # typing and the rest wait until they are used: Ctrl-C comes at any time
if TYPE_CHECKING:
    from trtla.errors import CheckFailed, TrtlaError, TrtlaWarning, UsageError
    from trtla.llm.answer import BeamText
    from trtla.llm.async_llm import AsyncLLM
    from trtla.llm.llm import LLM, Chunk, Completion
    from trtla.settings.drafting import DrafterSettings, DraftOptions
    from trtla.settings.lookahead import LookaheadConfig, max_draft_len
    from trtla.settings.sampling import BeamSettings, SamplingParams


__all__ = [
    "LLM",
    "AsyncLLM",
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

_HOME = {
    "LLM": "trtla.llm.llm",
    "BeamSettings": "trtla.settings.sampling",
    "AsyncLLM": "trtla.llm.async_llm",
    "BeamText": "trtla.llm.answer",
    "CheckFailed": "trtla.errors",
    "Chunk": "trtla.llm.llm",
    "Completion": "trtla.llm.llm",
    "DraftOptions": "trtla.settings.drafting",
    "DrafterSettings": "trtla.settings.drafting",
    "LookaheadConfig": "trtla.settings.lookahead",
    "SamplingParams": "trtla.settings.sampling",
    "TrtlaError": "trtla.errors",
    "TrtlaWarning": "trtla.errors",
    "UsageError": "trtla.errors",
    "max_draft_len": "trtla.settings.lookahead",
}


def __getattr__(name: str) -> object:
    """Import what is asked for, some of it with torch, only then (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'trtla' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
