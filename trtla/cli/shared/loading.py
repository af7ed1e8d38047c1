"""Opening the model that a command's flags name: imports and weights, which stay to the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
        more: options in place of what the flags say.
    """
    with loading():
        from trtla.llm.llm import LLM

        return LLM(given.engine_dir, replace(given.options, draft_models=draft_models, **more))
