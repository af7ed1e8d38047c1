"""Opening the model that a command's flags name: imports and weights, which stay to the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.cli.engine_check import is_trtllm
from trtla.errors import UsageError

if TYPE_CHECKING:
    from trtla.cli.drafter_options import CorpusFlags, ModelFlags
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
        from trtla.runtime.models.load import set_threads

        set_threads(given.threads)
        settings: dict[str, Any] = {
            "lookahead": given.lookahead,
            "tokenizer_dir": given.tokenizer_dir,
            "device": given.device,
            "dtype": given.dtype,
            "kv_cache_dtype": given.kv_cache_dtype,
            "draft_options": given.draft_options,
            "drafter": given.drafter,
            "draft_models": draft_models,
            "draft_device": given.draft_device,
            "draft_dtype": given.draft_dtype,
            "trtllm": given.trtllm,
        } | more
        return LLM(given.engine_dir, **settings)


def open_speaking(
    given: CorpusFlags, draft_models: Sequence[str], who: str, *, reuse: bool, **more: Any
) -> LLM:
    """The model that requests of OpenAI's API are put to.

    Args:
        who: what speaks text, for the refusal of a model without a tokenizer.
        reuse: share K/V blocks between requests with the same beginning.
        more: arguments of `LLM`; those of the torch executor alone are left out for others.

    Raises:
        UsageError: the model has no tokenizer.
    """
    size = more.pop("max_batch_size", None)
    more |= {"block_reuse": reuse, "corpus": given.corpus}
    if is_trtllm(Path(given.engine_dir)):
        more = {"trtllm": replace(given.trtllm, kv_cache_enable_block_reuse=reuse)}
    llm = open_llm(given, draft_models, max_batch_size=size, **more)
    if llm.tokenizer is None:
        llm.close()
        raise UsageError(
            f"{given.engine_dir} has no tokenizer files, and {who} speaks text",
            "name their folder with --tokenizer-dir",
        )
    return llm
