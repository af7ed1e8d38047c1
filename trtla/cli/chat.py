"""`trtla chat`: from flags to a session, and which front-end serves it.

The conversation itself is in trtla.chat; prompt_toolkit is imported for terminals only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.command import Command
from trtla.cli.drafter_options import (
    DRAFTERS,
    SETTINGS,
    ModelFlags,
    check_drafters,
    drafter_flags,
)
from trtla.cli.engine_check import check_triples, is_trtllm
from trtla.cli.loading import loading, open_llm
from trtla.cli.options import (
    color_flag,
    draft_flags,
    model_flags,
    options_of,
    processor_flag,
    sampling_flags,
    setting,
    several,
    stop_flag,
    trtllm_flags,
    with_processor,
)
from trtla.cli.settings import source
from trtla.cli.values import TEXT
from trtla.console import Console
from trtla.settings.drafting import DRAFT_PREFIX, DrafterSettings
from trtla.settings.fields import with_settings
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.runtime.limits import ExecutorLimits

_USUAL_LEN = 128
_LENGTH = {
    "default": _USUAL_LEN,
    "show_default": f"{_USUAL_LEN}, half the context where that is less",
    "help": "Most tokens of an answer.",
}


@dataclass(frozen=True)
class ChatFlags(ModelFlags):
    """The command's flags as click parsed them."""

    chat: bool
    color: str
    draft_model: tuple[str, ...]


@click.command(
    cls=Command,
    short_help="A conversation at the terminal, or from a script.",
    examples=[
        "trtla chat --engine-dir engine",
        "trtla chat --engine-dir engine --drafter ngram,lookahead --processor nucleus:0.8:0.9",
        "trtla chat --engine-dir engine --draft-model small-engine",
        "printf '/length 64\\nOnce upon\\n/compare lookahead 7,7,7 | drafter ngram\\n' | "
        "trtla chat --engine-dir engine",
    ],
)
@model_flags
@options_of(SamplingParams, "Sampling", only=("max_output_len",), max_output_len=_LENGTH)
@sampling_flags
@processor_flag
@stop_flag
@drafter_flags
@several(
    "--draft-model",
    section=DRAFTERS,
    type=TEXT,
    metavar="PATH",
    help="Draft models to load, so that /drafter draft:PATH can choose them.",
)
@draft_flags
@trtllm_flags
@setting(
    "--chat/--no-chat",
    section="Conversation",
    default=True,
    help="Whether messages are put into the model's chat template; without one, or with --no-chat, "
    "they are continued as plain text.",
)
@color_flag("Colour the tokens that were accepted in parallel.", "Conversation")
@click.pass_obj
def chat(console: Console, /, **flags: Any) -> None:
    """Talk with a model; the K/V cache is kept between turns.

    /help lists the commands, which change every setting while the conversation goes on. Where
    stdin is no terminal every line is a message or a command: answers go to stdout, all else to
    stderr.
    """
    given = ChatFlags(**with_settings(with_processor(flags), **SETTINGS))
    console.color = given.color
    by_default = source(click.get_current_context(), "max_output_len") == "default"
    check_triples(given.engine_dir, given.lookahead)
    named = [("--drafter", given.drafter)]
    named += [
        (f"--draft-model {path}", DrafterSettings((f"{DRAFT_PREFIX}{path}",)))
        for path in given.draft_model
    ]
    models = check_drafters(given.engine_dir, named, given.lookahead, given)
    with _open(given, models) as llm:
        if not llm.is_leader:  # a serving rank of mpirun: leaving the block serves to the end
            return
        sampling = _sized(given.sampling, llm.limits) if by_default else given.sampling
        _converse(llm, sampling, given, console)


def _open(given: ChatFlags, draft_models: list[str]) -> LLM:
    """The model, its cache kept between turns."""
    if is_trtllm(Path(given.engine_dir)):  # shares blocks by a setting of its own
        trtllm = replace(given.trtllm, kv_cache_enable_block_reuse=True)
        return open_llm(given, draft_models, max_batch_size=1, trtllm=trtllm)
    return open_llm(given, draft_models, max_batch_size=1, block_reuse=True)


def _sized(sampling: SamplingParams, limits: ExecutorLimits) -> SamplingParams:
    """Answers that leave half of a small context to the conversation."""
    length = min(sampling.max_output_len, max(limits.max_text_len // 2, 1))
    return replace(sampling, max_output_len=length)


def _converse(llm: LLM, sampling: SamplingParams, given: ChatFlags, console: Console) -> None:
    """At the terminal where both ends are one, else line by line."""
    from trtla.chat.session import Session
    from trtla.chat.settings import ChatSettings

    with loading():
        settings = ChatSettings(sampling, given.drafter, given.lookahead, chat=given.chat)
        session = Session(llm, settings)
    console.note(f"note: runs on {llm.description}")
    if sys.stdin.isatty() and sys.stdout.isatty():
        from trtla.chat.terminal import chat_at_terminal

        chat_at_terminal(session, console)
        return
    from trtla.chat.printer import Printer, chat_piped

    chat_piped(session, sys.stdin, Printer(console, session.tokenizer))
