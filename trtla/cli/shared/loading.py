"""Opening the model that a command's flags name: imports and weights, which stay to the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtla.cli.shared.drafter_options import ModelFlags
    from trtla.console import Console
    from trtla.llm.llm import LLM


@contextmanager
def loading() -> Iterator[None]:
    """Keep the garbage collector from what is loaded inside, now and at exit.

    `import torch` makes some 200 000 objects that stay. Looking through them for garbage, while
    they come and once more when Python ends, takes longer than all that trtla does at its start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def save_corpus(console: Console, llm: LLM, path: str | None) -> None:
    """Write what --save-corpus asks for, if anything."""
    if path is not None:
        llm.save_corpus(path)
        console.note(f"note: wrote {path}")


def open_llm(given: ModelFlags, draft_models: Sequence[str] = (), **more: Any) -> LLM:
    """The model that the flags name.

    Args:
        draft_models: those that single requests name.
        more: arguments of `LLM` beside or instead of what the flags say.
    """
    with loading():
        from trtla.llm.llm import LLM

        settings: dict[str, Any] = {
            "lookahead": given.lookahead,
            "tokenizer_dir": given.tokenizer_dir,
            "parse_special": given.parse_special,
            "device": given.device,
            "dtype": given.dtype,
            "kv_cache_dtype": given.kv_cache_dtype,
            "tp_size": given.tp_size,
            "lookahead_parallel": given.lookahead_parallel,
            "threads": given.threads,
            "draft_options": given.draft_options,
            "drafter": given.drafter,
            "draft_models": draft_models,
            "draft_device": given.draft_device,
            "draft_dtype": given.draft_dtype,
            "trtllm": given.trtllm,
        } | more
        return LLM(given.engine_dir, **settings)
