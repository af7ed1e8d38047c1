"""`trtla explain`: flags and printing; the other files record, describe and draw a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.flags import flags_as
from trtla.cli.shared.model import (
    ModelFlags,
    check_model,
    is_trtllm,
    note_loading,
    note_without_drafts,
    open_llm,
)
from trtla.cli.shared.outputs import check_new_file
from trtla.cli.shared.templates import check_template
from trtla.cli.shared.values import LOOKAHEAD
from trtla.console import Console
from trtla.errors import UsageError
from trtla.files import write_whole, written
from trtla.settings.lookahead import Lookahead
from trtla.settings.messages import ANSWER, Asking, is_conversation

if TYPE_CHECKING:
    from trtla.extras.explain.record import RecordedRun, RecordedStep
    from trtla.extras.explain.words import Style, Words
    from trtla.llm.llm import LLM
    from trtla.llm.prompt import PromptRequest

_STYLES: dict[Style, dict[str, Any]] = {
    "plain": {}, "bold": {"bold": True}, "dim": {"dim": True}, "input": {"bold": True},
    "accepted": {"fg": "green"}, "rejected": {"fg": "red"},
    "window": {"fg": "cyan"}, "candidate": {"fg": "yellow"},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExplainFlags(ModelFlags):
    """The command's flags as click parsed them."""

    input_text: str = opt.flag(
        "The prompt; - reads it from stdin.", "-p", section="Prompts", basic=True, required=True
    )
    request_lookahead: Lookahead | None = opt.flag(
        "The request's own triple, at most the default one, or auto.",
        section="Model",
        type=LOOKAHEAD,
        metavar="W,N,G|auto",
        show_default="the default triple",
    )
    step: int | None = opt.flag(
        "Which step to describe; 0 is the prefill.",
        section="Output",
        basic=True,
        type=click.IntRange(0),
        metavar="K",
        show_default="the step that accepted the most",
    )
    output: str | None = opt.flag(
        "Draw the step as well, as an SVG picture.",
        "-o",
        section="Output",
        basic=True,
        type=click.Path(dir_okay=False),
        metavar="FILE",
    )
    force: bool = opt.flag("Replace a picture that is there already.", section="Output")

    asking: Asking
    color: str


@click.command(
    cls=Command,
    short_help="One decoding step, described and drawn.",
    examples=[
        "trtla explain engine --input-text 'def f('",
        "trtla explain model --lookahead 4,4,4 --input-text 'def f(' -o step.svg",
        "trtla explain engine --input-text 'def f(' --step 3 -o step.svg",
        "trtla explain model --lookahead auto --input-text 'def f('",
        "trtla explain engine --input-text 'def f(' --drafter ngram --json > run.json",
    ],
)
@opt.engine_flags("Model")
@opt.flags_of(ExplainFlags)
@opt.chat_flags
@opt.opening_flags("the engine's triple; 7,7,7 of a model folder")
@opt.length_flag(default=32)
@opt.sampling_flags
@opt.processor_flag
@opt.stop_flags
@opt.drafter_flags
@opt.draft_flags
@opt.json_flag("Print every step as one JSON document.", "Output")
@opt.color_flag("Colour what was accepted and the parts of the mask.")
@click.pass_obj
def explain(console: Console, /, **flags: Any) -> None:
    """Decode one prompt and show what a step did: what W, N and G are, and what they bring.

    Prints the run as a strip, a row a step, then one step: the window with its levels, the n-grams
    that it gave to the pool, the candidates that the pool had, the attention mask, what was
    accepted, what the target added and why the step ended there. With --lookahead auto it prints
    the candidate tree: each node's source, its chance and whether it was accepted.
    """
    from trtla.data.prompts import gather

    settings = flags_as(ExplainFlags, flags)
    console.color = settings.color
    settings = _check(settings)
    triple, drafter = settings.drafting
    drafting = (settings.request_lookahead or triple, drafter)
    note_without_drafts(console.note, settings.engine_dir, [drafting])
    how = (settings.sampling, (), settings.options.drafter, settings.asking)
    [request] = gather([settings.input_text], None, *how)
    prompt, model = request.prompt, (settings.engine_dir, settings.options)
    chats = [(request.name, prompt, ANSWER)] if is_conversation(prompt) else []
    check_template(console, settings.asking, *model, chats, any_texts=not chats)
    note_loading(console, settings.engine_dir)
    with open_llm(settings, max_batch_size=1) as llm:
        _record_and_report(console, llm, request, settings)


def _check(flags: ExplainFlags) -> ExplainFlags:
    """Refuse what can be checked before torch is imported; return the flags with draft models."""
    from trtla.extras.explain.picture import check_picture
    from trtla.runtime.limits import refuse_watch

    if is_trtllm(Path(flags.engine_dir)):
        raise refuse_watch(flags.engine_dir)
    checked = check_model(flags, [("--request-lookahead", flags.request_lookahead)])
    if flags.output is not None:
        path = Path(flags.output)
        check_picture(path)
        check_new_file(path, "--output", force=flags.force)
    return checked


def _record_and_report(
    console: Console, llm: LLM, request: PromptRequest, flags: ExplainFlags
) -> None:
    from trtla.extras.explain.record import record_run
    from trtla.extras.explain.words import Words, document

    lookahead, opened = flags.request_lookahead, flags.options.lookahead
    if opened is None and llm.limits.drafter.head is not None:
        opened = "auto"  # in whose tree the head's tokens are
    if lookahead is None and opened == "auto":
        lookahead = "auto"
    run = record_run(llm, request.prompt, request.sampling, lookahead)
    decode = llm.tokenizer.decode if llm.tokenizer else None
    words = Words(decode, (*run.completion.input_ids, *run.completion.output_ids))
    step = _chosen(run, flags.step)
    if console.json:
        console.document(document(run, step, words, flags.engine_dir, llm.description))
    else:
        _print(console, run, step, words, flags)
    console.note(f"note: ran on {llm.description}")
    if flags.output is not None:
        _draw(console, run, step, words, Path(flags.output))


def _chosen(run: RecordedRun, number: int | None) -> RecordedStep:
    from trtla.extras.explain.step_outcome import busiest

    if number is None:
        return busiest(run)
    if number >= len(run.steps):
        last = len(run.steps) - 1
        raise UsageError(
            f"--step {number}: this run has the steps 0 to {last}",
            "omit --step for the one that accepted the most",
        )
    return run.steps[number]


def _print(
    console: Console, run: RecordedRun, step: RecordedStep, words: Words, flags: ExplainFlags
) -> None:
    from trtla.extras.explain.text_view import step_lines, strip_lines

    def paint(text: str, style: Style) -> str:
        return console.styled(text, **_STYLES[style]) if _STYLES[style] else text

    for line in strip_lines(run, words, paint):
        console.out(line)
    console.out()
    if flags.step is None:
        most = f"step {step.number} accepted the most"
        chosen = most if run.completion.stats.accepted else "no draft was accepted"
        console.note(f"note: {chosen}; another step with --step K")
    for line in step_lines(run, step, words, paint):
        console.out(line)


def _draw(console: Console, run: RecordedRun, step: RecordedStep, words: Words, path: Path) -> None:
    from trtla.extras.explain.picture import step_picture

    def paint(text: str, style: Style) -> str:
        return click.style(text, **_STYLES[style])

    with written(path, "give another path"):
        write_whole(path, step_picture(run, step, words, paint))
    console.note(f"note: wrote {path}")
