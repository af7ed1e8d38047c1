"""`trtla chat`: from flags to a session and its front-end.

prompt_toolkit is imported for terminals only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.flags import flags_as
from trtla.cli.shared.model import (
    CorpusFlags,
    block_reuse,
    check_model,
    loading,
    model_at,
    named_drafters,
    note_loading,
    note_without_drafts,
    open_llm,
    sample_model,
    save_corpus,
)
from trtla.console import Console
from trtla.settings.drafting import DRAFT_PREFIX, HEAD_PREFIX
from trtla.settings.messages import Asking
from trtla.settings.sampling import USUAL_LEN

if TYPE_CHECKING:
    from trtla.extras.chat.printer import Printer
    from trtla.extras.chat.session import Session
    from trtla.llm.llm import LLM

_NAMING = "trtla chat MODEL"


@dataclass(frozen=True, kw_only=True)
class ChatFlags(CorpusFlags):
    """The command's flags as click parsed them."""

    draft_model: tuple[str, ...] = opt.flag(
        "Draft models to load, so that /drafter draft:PATH can choose them.",
        section=opt.DRAFTERS,
        metavar="PATH",
        several=True,
    )
    head: tuple[str, ...] = opt.flag(
        "Trained heads to load, so that /drafter head:PATH can choose them.",
        section=opt.DRAFTERS,
        metavar="PATH",
        several=True,
    )
    chat: bool = opt.flag(
        "Put messages into the model's chat template. Without one, or with --no-chat, they are "
        "continued as plain text.",
        "--chat/--no-chat",
        section="Conversation",
        default=True,
    )
    system: str = opt.flag(
        "A system message, before the first message.",
        section="Conversation",
        default="",
        show_default=False,
    )

    color: str


@click.command(
    cls=Command,
    short_help="A conversation at the terminal, or from a script.",
    examples=[
        "trtla chat model.gguf",
        "trtla chat engine",
        "trtla chat engine --system 'Answer in one sentence.'",
        "trtla chat engine --drafter ngram,lookahead --processor nucleus:0.8:0.9",
        "trtla chat engine --draft-model small-engine",
        "printf '/max_output_len 64\\nOnce upon\\n/stats\\n' | trtla chat engine",
    ],
)
@opt.engine_flags("Model", type=opt.PATH, required=False, show_default="a small one")
@opt.opening_flags()
@opt.flags_of(ChatFlags)
@opt.length_flag(
    default=USUAL_LEN, show_default="half the context", help="Most tokens of an answer."
)
@opt.sampling_flags
@opt.processor_flag
@opt.stop_flags
@opt.grammar_flags
@opt.drafter_flags
@opt.corpus_flags
@opt.draft_flags
@opt.trtllm_flags
@opt.color_flag("Colour accepted draft tokens.", "Conversation")
@click.pass_obj
def chat(console: Console, /, **flags: Any) -> None:
    """Talk with a model, or with a small one if none is named. The K/V cache is kept between turns.

    Every flag for sampling and drafting is a command during the conversation too: /gamma 6. /help
    lists the commands. If stdin is not a terminal, every line is a message or a command: answers go
    to stdout, all else to stderr, and the exit code is 2 if a line was refused.
    """
    model = sample_model(console.note, _NAMING, flags["engine_dir"])
    flags["engine_dir"] = str(model_at(model).path)
    settings = flags_as(ChatFlags, flags)
    Asking(settings.chat, settings.system or None)  # refuses --system with --no-chat
    console.color = settings.color
    named = named_drafters("--draft-model", DRAFT_PREFIX, settings.draft_model)
    named += named_drafters("--head", HEAD_PREFIX, settings.head)
    settings = check_model(settings, drafters=named)
    note_without_drafts(console.note, settings.engine_dir, [settings.drafting])
    reuse = block_reuse(settings, model_at(settings.engine_dir), on=True)
    note_loading(console, settings.engine_dir)
    with open_llm(settings, max_batch_size=1, **reuse) as llm:
        if not llm.is_leader:  # a serving rank of mpirun: leaving the block serves to the end
            return
        printer, converse = _front_end(console)
        session = _session(llm, printer, settings)
        console.note(f"note: runs on {llm.description}")
        code = converse(session)
        save_corpus(console, llm, settings.save_corpus)
    click.get_current_context().exit(code)


def _session(llm: LLM, printer: Printer, flags: ChatFlags) -> Session:
    from trtla.extras.chat.session import Session
    from trtla.extras.chat.settings import ChatSettings

    sampling, options = flags.sampling, flags.options
    found = llm.limits.drafter
    drafter = found if found.head else options.drafter  # a head may have been found
    chosen = ChatSettings(sampling, drafter, options.lookahead, flags.system, flags.chat)
    with loading():
        return Session(llm, chosen, printer, flags.given.context)


def _front_end(console: Console) -> tuple[Printer, Callable[[Session], int]]:
    """The printer, and the function that reads lines until the chat ends: its exit code."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        from trtla.extras.chat.terminal import TerminalPrinter, chat_at_terminal

        printer = TerminalPrinter(console)
        return printer, partial(chat_at_terminal, printer)
    from trtla.extras.chat.printer import Printer

    return Printer(console), _chat_piped


def _chat_piped(session: Session) -> int:
    for line in sys.stdin:
        if not session.handle(line.rstrip("\r\n")):
            break
    return session.exit_code
