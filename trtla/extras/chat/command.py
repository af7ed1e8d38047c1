"""`trtla chat`: from flags to a session and its front-end.

The conversation itself is in trtla.extras.chat; prompt_toolkit is imported for terminals only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.flags import flags_as
from trtla.cli.shared.model import (
    SHIPPED,
    CorpusFlags,
    block_reuse,
    check_model,
    loading,
    model_at,
    note_loading,
    note_without_drafts,
    open_llm,
    sample_model,
    save_corpus,
)
from trtla.console import Console
from trtla.errors import UsageError
from trtla.files import user_cache, write_whole
from trtla.settings.drafting import DRAFT_PREFIX, DrafterSettings
from trtla.settings.messages import Asking
from trtla.settings.sampling import USUAL_LEN

if TYPE_CHECKING:
    from trtla.extras.chat.printer import Printer
    from trtla.extras.chat.session import Session
    from trtla.llm.llm import LLM

_LENGTH = "half the context"
_LAST = "chat_model"
"""The file in the user's cache with the name of the last chat's model."""
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
    chat: bool = opt.flag(
        "Whether messages are put into the model's chat template; without one, or with --no-chat, "
        "they are continued as plain text.",
        "--chat/--no-chat",
        section="Conversation",
        default=True,
    )
    system: str = opt.flag(
        "A system message, which the chat template has before the first message.",
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
@opt.engine_flags("Model", type=opt.PATH, required=False, show_default="that of the last chat")
@opt.opening_flags()
@opt.flags_of(ChatFlags)
@opt.length_flag(default=USUAL_LEN, show_default=_LENGTH, help="Most tokens of an answer.")
@opt.sampling_flags
@opt.processor_flag
@opt.stop_flags
@opt.grammar_flags
@opt.drafter_flags
@opt.corpus_flags
@opt.draft_flags
@opt.trtllm_flags
@opt.color_flag("Colour the tokens that were accepted in parallel.", "Conversation")
@click.pass_obj
def chat(console: Console, /, **flags: Any) -> None:
    """Talk with a model, without --engine-dir that of the last chat, or else a small one to try
    trtla with; the K/V cache is kept between turns.

    /help lists the commands, which change every setting during the conversation. Where
    stdin is no terminal every line is a message or a command: answers go to stdout, all else to
    stderr, and the exit code is 2 where a line was refused.
    """
    model = _model(flags["engine_dir"], console)
    flags["engine_dir"] = str(model_at(model).path)
    settings = flags_as(ChatFlags, flags)
    Asking(settings.chat, settings.system or None)  # refuses --system with --no-chat
    console.color = settings.color
    named = [
        (f"--draft-model {path}", DrafterSettings((f"{DRAFT_PREFIX}{path}",)))
        for path in settings.draft_model
    ]
    settings = check_model(settings, drafters=named)
    note_without_drafts(console.note, settings.engine_dir, [settings.drafting])
    reuse = block_reuse(settings, model_at(settings.engine_dir), on=True)
    note_loading(console, settings.engine_dir)
    with open_llm(settings, max_batch_size=1, **reuse) as llm:
        if not llm.is_leader:  # a serving rank of mpirun: leaving the block serves to the end
            return
        printer, converse = _front_end(console)
        session = _session(llm, printer, settings, model)
        _remember(model)
        console.note(f"note: runs on {llm.description}")
        code = converse(session)
        save_corpus(console, llm, settings.save_corpus)
    click.get_current_context().exit(code)


def _model(named: str | None, console: Console) -> str:
    """The named model, else that of the last chat, else a sample model."""
    last = _last_model() if named is None else None
    if last is None:
        return sample_model(console.note, _NAMING, named)
    if os.path.isabs(last) and not os.path.exists(last):
        raise UsageError(f"{last}, the model of the last chat, is gone", f"name one: {_NAMING}")
    console.note(f"note: the model is {last}, as in the last chat")
    return last


def _last_model() -> str | None:
    try:
        return os.fsdecode((user_cache() / _LAST).read_bytes()) or None
    except OSError:
        return None


def _remember(model: str) -> None:
    if model == str(SHIPPED):
        return
    stored = Path(model).absolute() if Path(model).exists() else model
    with suppress(OSError):
        user_cache().mkdir(parents=True, exist_ok=True)
        write_whole(user_cache() / _LAST, os.fsencode(stored))


def _session(llm: LLM, printer: Printer, flags: ChatFlags, model: str) -> Session:
    from trtla.extras.chat.session import Session
    from trtla.extras.chat.settings import ChatSettings

    sampling, options = flags.sampling, flags.options
    chosen = ChatSettings(
        sampling, options.drafter, options.lookahead, chat=flags.chat, system=flags.system
    )
    with loading():
        return Session(llm, chosen, printer, model)


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
