"""trtla: lookahead decoding for language models, from a Hugging Face checkpoint to text."""

from __future__ import annotations

from trtla.version import __version__

TYPE_CHECKING = False  # typing and the rest wait until they are used: Ctrl-C comes at any time
if TYPE_CHECKING:
    from trtla.errors import CheckFailed, TrtlaError, TrtlaWarning, UsageError
    from trtla.llm.answer import BeamText
    from trtla.llm.async_llm import AsyncLLM
    from trtla.llm.llm import LLM, Chunk, Completion
    from trtla.settings.custom_drafters import TokenDrafter
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
    "TokenDrafter",
    "TrtlaError",
    "TrtlaWarning",
    "UsageError",
    "__version__",
    "max_draft_len",
]

_HOMES = {
    "trtla.errors": ("CheckFailed", "TrtlaError", "TrtlaWarning", "UsageError"),
    "trtla.llm.answer": ("BeamText",),
    "trtla.llm.async_llm": ("AsyncLLM",),
    "trtla.llm.llm": ("LLM", "Chunk", "Completion"),
    "trtla.settings.custom_drafters": ("TokenDrafter",),
    "trtla.settings.drafting": ("DraftOptions", "DrafterSettings"),
    "trtla.settings.lookahead": ("LookaheadConfig", "max_draft_len"),
    "trtla.settings.sampling": ("BeamSettings", "SamplingParams"),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, some with torch (PEP 562)."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'trtla' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
