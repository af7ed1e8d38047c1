"""The model of a command that answers requests of OpenAI's API: its flags and its opening."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtla.cli.shared import options as opt
from trtla.cli.shared.flags import flags_as
from trtla.cli.shared.model import (
    CorpusFlags,
    block_reuse,
    check_model,
    model_at,
    named_drafters,
    note_without_drafts,
    open_llm,
    sample_model,
)
from trtla.cli.shared.values import COUNT
from trtla.errors import UsageError
from trtla.settings.drafting import HEAD_PREFIX
from trtla.settings.executor import TrtllmSettings

if TYPE_CHECKING:
    from trtla.formats.model import Model
    from trtla.llm.llm import LLM


@dataclass(frozen=True)
class ServedModelFlags(CorpusFlags):
    """The flags for the model as click parsed them."""

    force_greedy: bool
    kv_cache_enable_block_reuse: bool
    """Share K/V blocks between requests with the same beginning."""
    head: tuple[str, ...]
    """Trained heads that requests may name."""


Flags = TypeVar("Flags", bound=ServedModelFlags)

served_model_flags = opt.stack(
    opt.opening_flags(),
    opt.setting(
        "--max-batch-size",
        section="Model",
        type=COUNT,
        show_default="the engine's",
        help="Texts that are written at the same time, at most the engine's.",
    ),
    opt.switch(
        "--force-greedy",
        section="Model",
        help="Answer greedily whatever temperature, top_p and top_k requests have, for clients "
        "that always send them.",
    ),
    opt.setting(
        "--kv-cache-enable-block-reuse/--no-kv-cache-enable-block-reuse",
        section="Model",
        default=True,
        help="Share K/V blocks between requests with the same beginning; the texts stay the same.",
    ),
)
"""Flags for opening the model; block reuse takes the place of TensorRT-LLM's own setting."""

served_draft_flags = opt.stack(
    opt.drafter_flags,
    opt.several(
        "--head",
        section=opt.DRAFTERS,
        metavar="PATH",
        help="Trained heads to load, so that requests can name them as the drafter head:PATH.",
    ),
    opt.corpus_flags,
    opt.draft_flags,
    opt.options_of(TrtllmSettings, "TensorRT-LLM engines", but=("kv_cache_enable_block_reuse",)),
)
"""Flags for drafting, and TensorRT-LLM's settings."""


def checked(
    kind: type[Flags], params: dict[str, Any], note: Callable[[str], None], naming: str
) -> Flags:
    """Parse a command's flags, with their draft models and heads among the options; `note` and
    `naming` as in `sample_model`."""
    folder = str(model_at(sample_model(note, naming, params["engine_dir"])).path)
    flags = flags_as(kind, params | {"engine_dir": folder})
    flags = check_model(flags, drafters=named_drafters("--head", HEAD_PREFIX, flags.head))
    note_without_drafts(note, folder, [flags.drafting])
    return flags


def served_name(served: str | None, named: str | None, flags: ServedModelFlags) -> str:
    """The model's name in requests and answers; by default that of its folder or file."""
    return served or Path(named or flags.engine_dir).resolve().name.removesuffix(".gguf")


def open_served(
    flags: ServedModelFlags, caller: str, model: Model | None = None, **more: Any
) -> LLM:
    """Open the model for requests of OpenAI's API.

    Args:
        caller: the command as a noun, for the refusal of a model without a tokenizer.
        model: the command's own description of the model, for threads of its process.
        more: arguments of `LLM` for the torch executor alone.
    """
    model = model or model_at(flags.engine_dir)
    torch_only = {} if model.is_trtllm else more
    reuse = block_reuse(flags, model, on=flags.kv_cache_enable_block_reuse)
    llm = open_llm(flags, model, **torch_only, **reuse)
    llm.force_greedy = flags.force_greedy
    if llm.tokenizer is None:
        llm.close()
        raise UsageError(
            f"{flags.engine_dir} has no tokenizer files, and {caller} speaks text",
            "name their folder with --tokenizer-dir",
        )
    return llm
