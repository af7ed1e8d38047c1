"""Flags and opening of the model that `trtla serve` and `trtla batch` answer requests with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtla.cli.shared.model import (
    CorpusFlags,
    check_model,
    is_trtllm,
    open_llm,
)
from trtla.cli.shared.options import (
    corpus_flags,
    draft_flags,
    drafter_flags,
    opening_flags,
    options_of,
    setting,
    stack,
    switch,
)
from trtla.cli.shared.values import COUNT
from trtla.errors import UsageError
from trtla.settings.executor import TrtllmSettings
from trtla.settings.fields import parsed

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

_REUSE = "kv_cache_enable_block_reuse"


@dataclass(frozen=True)
class AnsweringFlags(CorpusFlags):
    """The flags of both commands as click parsed them."""

    force_greedy: bool
    reuse: bool
    """Share K/V blocks between requests with the same beginning."""


Flags = TypeVar("Flags", bound=AnsweringFlags)

answering_model_flags = stack(
    opening_flags,
    setting(
        "--max-batch-size",
        section="Model",
        type=COUNT,
        show_default="the engine's",
        help="Texts that are written at the same time, at most the engine's.",
    ),
    switch(
        "--force-greedy",
        section="Model",
        help="Answer greedily whatever temperature, top_p and top_k requests have, for clients "
        "that always send them.",
    ),
    setting(
        "--kv-cache-enable-block-reuse/--no-kv-cache-enable-block-reuse",
        section="Model",
        default=True,
        help="Share K/V blocks between requests with the same beginning; the texts stay the same.",
    ),
)
"""How the model is opened; block reuse is in place of the one among TensorRT-LLM's settings."""

answering_draft_flags = stack(
    drafter_flags,
    corpus_flags,
    draft_flags,
    options_of(TrtllmSettings, "TensorRT-LLM engines", but=(_REUSE,)),
)
"""What drafts for the requests, and TensorRT-LLM's settings."""


def answering_folder(note: Callable[[str], None], naming: str, named: str | None) -> str:
    """The folder of the named model; without a name the downloaded sample, else the shipped model.

    Args:
        naming: a command that names a model, for the note on the one that is taken.
    """
    from trtla.cli.shared.model import sample_model
    from trtla.formats.gguf.folder import model_folder

    return str(model_folder(sample_model(note, naming, named)))


def checked(kind: type[Flags], flags: Mapping[str, Any]) -> tuple[Flags, list[str]]:
    """A command's flags, and the draft models that they name.

    Raises:
        UsageError: they do not fit each other or the model.
    """
    others = {name: value for name, value in flags.items() if name != _REUSE}
    given = parsed(kind, {**others, "reuse": flags[_REUSE]})
    return given, check_model(given)


def answering_name(served: str | None, named: str | None, given: AnsweringFlags) -> str:
    """The model's name in requests and answers; without one its folder's or file's."""
    return served or Path(named or given.engine_dir).resolve().name.removesuffix(".gguf")


def open_answering(given: AnsweringFlags, draft_models: list[str], who: str, **more: Any) -> LLM:
    """The model that requests of OpenAI's API are put to.

    Args:
        who: what speaks text, for the refusal of a model without a tokenizer.
        more: arguments of `LLM` for the torch executor alone.

    Raises:
        UsageError: the model has no tokenizer.
    """
    more |= {"block_reuse": given.reuse}
    if is_trtllm(Path(given.engine_dir)):
        more = {"trtllm": replace(given.options.trtllm, kv_cache_enable_block_reuse=given.reuse)}
    llm = open_llm(given, draft_models, **more)
    llm.force_greedy = given.force_greedy
    if llm.tokenizer is None:
        llm.close()
        raise UsageError(
            f"{given.engine_dir} has no tokenizer files, and {who} speaks text",
            "name their folder with --tokenizer-dir",
        )
    return llm
