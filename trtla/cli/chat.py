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
    ModelFlags,
    check_drafters,
    drafter_flags,
    drafter_settings,
)
from trtla.cli.engine_check import check_triples, is_trtllm
from trtla.cli.loading import loading, open_llm
from trtla.cli.options import (
    TrtllmFlags,
    color_flag,
    draft_flags,
    model_flags,
    processor_flag,
    sampling_flags,
    setting,
    several,
    trtllm_flags,
    trtllm_settings,
    with_processor,
)
from trtla.cli.values import TEXT
from trtla.console import Console
from trtla.settings.drafting import DRAFT_PREFIX, DrafterSettings

if TYPE_CHECKING:
    from trtla.chat.settings import ChatSettings
    from trtla.llm.llm import LLM
    from trtla.runtime.limits import ExecutorLimits

_USUAL_LEN = 128


@dataclass(frozen=True)
class ChatFlags(ModelFlags, TrtllmFlags):
    """The command's flags as click parsed them."""

    max_output_len: int | None
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: tuple[str, ...]
    chat: bool
    color: str
    drafter: str
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
@setting(
    "--max-output-len",
    section="Sampling",
    type=int,
    show_default="128, half the context where that is less",
    help="Most tokens of an answer.",
)
@sampling_flags
@processor_flag
@several("--stop", section="Sampling", type=TEXT, help="Texts that end an answer.")
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
    given = ChatFlags(**with_processor(flags))
    console.color = given.color
    drafter = drafter_settings(given.drafter, given)
    settings = _settings(given, drafter)
    check_triples(given.engine_dir, given.lookahead)
    named = [("--drafter", drafter)]
    named += [
        (f"--draft-model {path}", DrafterSettings((f"{DRAFT_PREFIX}{path}",)))
        for path in given.draft_model
    ]
    models = check_drafters(given.engine_dir, named, given.lookahead, given)
    with _open(given, drafter, models) as llm:
        if not llm.is_leader:  # a serving rank of mpirun: leaving the block serves to the end
            return
        sized = settings if given.max_output_len else _sized(settings, llm.limits)
        _converse(llm, sized, console)


def _settings(given: ChatFlags, drafter: DrafterSettings) -> ChatSettings:
    """What the chat begins with, checked before torch is imported."""
    from trtla.chat.settings import ChatSettings
    from trtla.settings.sampling import SamplingParams

    sampling = SamplingParams(
        max_output_len=_USUAL_LEN if given.max_output_len is None else given.max_output_len,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        seed=given.seed,
        stop=given.stop,
    )
    return ChatSettings(sampling, drafter, given.lookahead, chat=given.chat)


def _open(given: ChatFlags, drafter: DrafterSettings, draft_models: list[str]) -> LLM:
    """The model, its cache kept between turns."""
    if is_trtllm(Path(given.engine_dir)):  # shares blocks by a setting of its own
        trtllm = replace(trtllm_settings(given), kv_cache_enable_block_reuse=True)
        return open_llm(given, drafter, draft_models, max_batch_size=1, trtllm=trtllm)
    return open_llm(given, drafter, draft_models, max_batch_size=1, block_reuse=True)


def _sized(settings: ChatSettings, limits: ExecutorLimits) -> ChatSettings:
    """Answers that leave half of a small context to the conversation."""
    length = min(_USUAL_LEN, max(limits.max_text_len // 2, 1))
    return replace(settings, sampling=replace(settings.sampling, max_output_len=length))


def _converse(llm: LLM, settings: ChatSettings, console: Console) -> None:
    """At the terminal where both ends are one, else line by line."""
    from trtla.chat.session import Session

    with loading():
        session = Session(llm, settings)
    console.note(f"note: runs on {llm.description}")
    if sys.stdin.isatty() and sys.stdout.isatty():
        from trtla.chat.terminal import chat_at_terminal

        chat_at_terminal(session, console)
        return
    from trtla.chat.printer import Printer, chat_piped

    chat_piped(session, sys.stdin, Printer(console, session.tokenizer))
