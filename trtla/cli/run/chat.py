"""`trtla chat`: from flags to a session, and which front-end serves it.

The conversation itself is in trtla.chat; prompt_toolkit is imported for terminals only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared.command import Command
from trtla.cli.shared.model import (
    SHIPPED,
    CorpusFlags,
    check_model,
    is_trtllm,
    loading,
    open_llm,
    sample_model,
    save_corpus,
)
from trtla.cli.shared.options import (
    DRAFTERS,
    PATH,
    color_flag,
    corpus_flags,
    draft_flags,
    drafter_flags,
    engine_flags,
    length_flag,
    model_argument,
    opening_flags,
    processor_flag,
    sampling_flags,
    setting,
    several,
    stop_flag,
    trtllm_flags,
    with_processor,
)
from trtla.cli.shared.params import source
from trtla.cli.shared.values import TEXT
from trtla.console import Console
from trtla.errors import UsageError
from trtla.files import user_cache, write_whole
from trtla.settings.drafting import DRAFT_PREFIX, DrafterSettings
from trtla.settings.fields import parsed
from trtla.settings.sampling import USUAL_LEN, SamplingParams

if TYPE_CHECKING:
    from trtla.chat.printer import Printer
    from trtla.chat.session import Session
    from trtla.llm.llm import LLM
    from trtla.runtime.limits import ExecutorLimits

_LENGTH = {
    "show_default": f"{USUAL_LEN}, half the context where that is less",
    "help": "Most tokens of an answer.",
}

_LAST = "chat_model"
"""The file in the user's cache with the name of the last chat's model."""
_NAMING = "trtla chat --engine-dir MODEL"


@dataclass(frozen=True)
class ChatFlags(CorpusFlags):
    """The command's flags as click parsed them."""

    chat: bool
    system: str
    color: str
    draft_model: tuple[str, ...]


@click.command(
    cls=Command,
    short_help="A conversation at the terminal, or from a script.",
    examples=[
        "trtla chat model.gguf",
        "trtla chat --engine-dir engine",
        "trtla chat --engine-dir engine --system 'Answer in one sentence.'",
        "trtla chat --engine-dir engine --drafter ngram,lookahead --processor nucleus:0.8:0.9",
        "trtla chat --engine-dir engine --draft-model small-engine",
        "printf '/max_output_len 64\\nOnce upon\\n/compare lookahead 7,7,7 | drafter ngram\\n' | "
        "trtla chat --engine-dir engine",
    ],
)
@model_argument()
@engine_flags("Model", type=PATH, required=False, show_default="that of the last chat")
@opening_flags
@length_flag(**_LENGTH)
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
@corpus_flags
@draft_flags
@trtllm_flags
@setting(
    "--chat/--no-chat",
    section="Conversation",
    default=True,
    help="Whether messages are put into the model's chat template; without one, or with --no-chat, "
    "they are continued as plain text.",
)
@setting(
    "--system",
    section="Conversation",
    type=TEXT,
    default="",
    show_default=False,
    help="A system message, which the chat template has before the first message.",
)
@color_flag("Colour the tokens that were accepted in parallel.", "Conversation")
@click.pass_obj
def chat(console: Console, /, **flags: Any) -> None:
    """Talk with a model, without --engine-dir that of the last chat, or else a small one to try
    trtla with; the K/V cache is kept between turns.

    /help lists the commands, which change every setting while the conversation goes on. Where
    stdin is no terminal every line is a message or a command: answers go to stdout, all else to
    stderr.
    """
    model = _model(flags["engine_dir"], console)
    flags["engine_dir"] = _folder(model)
    settings = parsed(ChatFlags, with_processor(flags))
    _check_system(settings)
    console.color = settings.color
    by_default = source(click.get_current_context(), "max_output_len") == "default"
    named = [
        (f"--draft-model {path}", DrafterSettings((f"{DRAFT_PREFIX}{path}",)))
        for path in settings.draft_model
    ]
    settings = check_model(settings, drafters=named)
    with _open(settings) as llm:
        if not llm.is_leader:  # a serving rank of mpirun: leaving the block serves to the end
            return
        sampling = _sized(settings.sampling, llm.limits) if by_default else settings.sampling
        printer, converse = _front_end(console)
        session = _session(llm, printer, sampling, settings)
        _remember(model)
        console.note(f"note: runs on {llm.description}")
        converse(session)
        save_corpus(console, llm, settings.save_corpus)


def _model(named: str | None, console: Console) -> str:
    """The model that is named, else that of the last chat, else one to try trtla with."""
    if named is not None:
        return named
    last = _last_model()
    if last is None:
        return sample_model(console.note, _NAMING)
    if os.path.isabs(last) and not os.path.exists(last):
        raise UsageError(f"{last}, the model of the last chat, is gone", f"name one: {_NAMING}")
    console.note(f"note: the model is {last}, as in the last chat")
    return last


def _folder(model: str) -> str:
    """As for other commands' models, here after the name has been taken."""
    from trtla.formats.gguf.folder import model_folder

    return str(model_folder(model))


def _last_model() -> str | None:
    try:
        return os.fsdecode((user_cache() / _LAST).read_bytes()) or None
    except OSError:
        return None


def _remember(model: str) -> None:
    """Keep the model's name for a chat that names none; where that cannot be written, go on."""
    if model == str(SHIPPED):
        return
    place = Path(model).absolute() if Path(model).exists() else model
    with suppress(OSError):
        user_cache().mkdir(parents=True, exist_ok=True)
        write_whole(user_cache() / _LAST, os.fsencode(place))


def _check_system(flags: ChatFlags) -> None:
    if flags.system and not flags.chat:
        raise UsageError(
            "--system is a message of the chat template, which --no-chat omits", "omit one of them"
        )


def _open(flags: ChatFlags) -> LLM:
    """The model, its cache kept between turns."""
    if is_trtllm(Path(flags.engine_dir)):  # shares blocks by a setting of its own
        trtllm = replace(flags.options.trtllm, kv_cache_enable_block_reuse=True)
        return open_llm(flags, max_batch_size=1, trtllm=trtllm)
    return open_llm(flags, max_batch_size=1, block_reuse=True)


def _sized(sampling: SamplingParams, limits: ExecutorLimits) -> SamplingParams:
    """Answers that leave half of a small context to the conversation."""
    length = min(sampling.max_output_len, max(limits.max_text_len // 2, 1))
    return replace(sampling, max_output_len=length)


def _session(llm: LLM, printer: Printer, sampling: SamplingParams, flags: ChatFlags) -> Session:
    from trtla.chat.session import Session
    from trtla.chat.settings import ChatSettings

    settings = ChatSettings(
        sampling,
        flags.options.drafter,
        flags.options.lookahead,
        chat=flags.chat,
        system=flags.system,
    )
    with loading():
        return Session(llm, settings, printer)


def _front_end(console: Console) -> tuple[Printer, Callable[[Session], None]]:
    """Where a session prints, and what reads its lines: a terminal where both ends are one."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        from trtla.chat.terminal import TerminalPrinter, chat_at_terminal

        printer = TerminalPrinter(console)
        return printer, partial(chat_at_terminal, printer)
    from trtla.chat.printer import Printer

    return Printer(console), _chat_piped


def _chat_piped(session: Session) -> None:
    for line in sys.stdin:
        if not session.handle(line.rstrip("\r\n")):
            return
