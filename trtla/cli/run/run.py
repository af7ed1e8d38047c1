"""`trtla run`: prompts in, lookahead-decoded text out.

Prompts come from `data.prompts`, answers from `results.run`; `cli.transcript` prints them.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.run.beam_options import (
    beam_flags,
    beams_wanted,
    check_beams,
    search_and_report,
)
from trtla.cli.shared.command import Command
from trtla.cli.shared.model import (
    CorpusFlags,
    check_comparable,
    check_model,
    check_template,
    is_trtllm,
    open_llm,
    save_corpus,
)
from trtla.cli.shared.options import (
    chat_flags,
    color_flag,
    corpus_flags,
    draft_flags,
    drafter_flags,
    json_flag,
    length_flag,
    model_argument,
    model_flags,
    options_of,
    processor_flag,
    sampling_flags,
    setting,
    several,
    stop_flag,
    switch,
    trtllm_flags,
    with_processor,
)
from trtla.cli.shared.params import Positional, source
from trtla.cli.shared.values import COUNT, LOOKAHEAD, TEXT
from trtla.console import Console
from trtla.errors import CheckFailed, UsageError
from trtla.machine import process_rank
from trtla.settings.drafting import refuse_texts
from trtla.settings.fields import parsed
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead
from trtla.settings.messages import Asking
from trtla.settings.sampling import USUAL_LEN, BeamSettings, SamplingParams, UsualLength

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.prompt import PromptRequest
    from trtla.results.run import Decoded


_LENGTH = f"{USUAL_LEN}, or what the prompt leaves of the engine's room"


@dataclass(frozen=True)
class RunFlags(CorpusFlags):
    """The command's flags as click parsed them."""

    request_lookahead: tuple[Lookahead, ...]
    no_lookahead: bool
    input_text: tuple[str, ...]
    input_file: str | None
    expected_output: tuple[str, ...]
    asking: Asking
    stream: bool
    check_lossless: bool
    color: str
    beams: BeamSettings
    num_return_sequences: int | None


@click.command(
    cls=Command,
    short_help="Prompts -> text, with lookahead decoding.",
    examples=[
        "trtla run model.gguf 'Once upon a time'",
        "trtla run --engine-dir engine --input-text 'Once upon' 'To be, or not'",
        "trtla run --engine-dir engine --input-file prompts.jsonl --json > results.json",
        "trtla run --engine-dir engine --input-text 'def f(' --request-lookahead 3,3,3 --stream",
        "cat prompt.txt | trtla run -m engine -q > answer.txt",
        "trtla run --engine-dir engine --input-text 'Once upon' --num-beams 4 --json",
        "trtla run --engine-dir engine --chat --input-text 'Why is the sky blue?'",
    ],
)
@model_argument(required=True)
@click.argument("prompt", cls=Positional, type=TEXT, required=False)
@several(
    "-p",
    "--input-text",
    basic=True,
    section="Prompts",
    type=TEXT,
    help="Prompts, several after one flag; - reads one from stdin, as a pipe does without this.",
)
@setting(
    "--input-file",
    basic=True,
    section="Prompts",
    type=click.Path(allow_dash=True),
    help="A .txt file with one prompt a line, a .jsonl file with text, messages or input_ids and "
    "settings of their own, or with Spec-Bench's turns, or - for either on stdin.",
)
@several(
    "--expected-output",
    section="Prompts",
    type=TEXT,
    metavar="TEXT|@FILE",
    help="What the outputs are expected to be like, such as a text that a prompt asks to edit: "
    "auto takes drafts from it, no text changes. One for all prompts, or one a prompt; - is stdin.",
)
@chat_flags
@model_flags(required=False)
@several(
    "--request-lookahead",
    section="Model",
    type=LOOKAHEAD,
    metavar="W,N,G|auto",
    show_default="that of --lookahead",
    help="The requests' own triples, at most that of --lookahead, or auto: one for all prompts, or "
    "one a prompt.",
)
@switch("--no-lookahead", section="Model", help="Decode every request with 1,1,0.")
@setting(
    "--max-batch-size",
    section="Model",
    type=COUNT,
    show_default="the engine's",
    help="Requests in flight at a time, at most the engine's.",
)
@length_flag(show_default=_LENGTH)
@sampling_flags
@processor_flag
@stop_flag
@options_of(
    SamplingParams, "Sampling", only=("allotted_time_ms",), allotted_time_ms={"type": COUNT}
)
@beam_flags
@drafter_flags
@corpus_flags
@draft_flags
@trtllm_flags
@switch("--stream", basic=True, section="Output", help="Print text as it comes.")
@switch(
    "--check-lossless",
    section="Output",
    help="Decode again with 1,1,0 and compare; exit code 3 when a text differs.",
)
@json_flag("Print one JSON document; with --stream a line a chunk, then the document.", "Output")
@color_flag("Colour the tokens that were accepted in parallel.")
@click.pass_obj
def run(console: Console, /, **params: Any) -> None:
    """Decode prompts, all in one in-flight batch.

    Prints each text as TensorRT-LLM's run.py does, then a table; with --quiet the bare texts.
    Tokens per step (those behind the first, over steps) is what lookahead gains; a low share of
    distinct 4-grams shows that the text loops, which flatters it.
    """
    if (prompt := params.pop("prompt")) is not None:
        params["input_text"] = (prompt, *params["input_text"])
    if source(click.get_current_context(), "max_output_len") == "default":
        params["max_output_len"] = USUAL_LEN  # shrinks to fit, which a 256 that is given does not
    flags = parsed(RunFlags, with_processor(params))
    console.color = flags.color
    by_beams = beams_wanted(flags.beams, flags.num_return_sequences)
    # mpirun gives stdin to rank 0 only; the others have no prompts of their own.
    requests = _requests(console, flags) if not process_rank() else []
    if by_beams:
        check_beams(flags, requests)
    flags = _check(console, flags, requests)
    with open_llm(flags) as llm:
        if not llm.is_leader:  # a serving rank of mpirun: leaving the block serves to the end
            return
        requests = _sized(llm, _as_messages(llm, requests))
        if by_beams:
            search_and_report(console, llm, requests, flags.beams, flags.num_return_sequences)
        else:
            _decode_and_report(console, llm, requests, flags)
        save_corpus(console, llm, flags.save_corpus)


def _requests(console: Console, flags: RunFlags) -> list[PromptRequest]:
    """The prompts with their settings, checked before torch is imported."""
    from trtla.data.prompts import gather

    if flags.no_lookahead and flags.request_lookahead:
        raise UsageError(
            "--no-lookahead and --request-lookahead exclude each other", "omit one of them"
        )
    if not flags.input_text and flags.input_file is None:
        _announce_stdin(console)
    texts, file, triples = flags.input_text, flags.input_file, flags.request_lookahead
    how = (flags.sampling, triples, flags.options.drafter, flags.asking, flags.expected_output)
    requests = gather(texts, file, *how)
    if flags.no_lookahead:
        requests = [replace(request, lookahead=AUTOREGRESSIVE) for request in requests]
    return requests


_WAIT_S = 1.0
"""After which a pipe that has brought nothing is worth a note."""


def _announce_stdin(console: Console) -> None:
    """Note that stdin is read: a pipe that nobody writes to would look like a hang."""
    from trtla.data.prompts import piped

    if not piped():
        return
    with suppress(OSError):  # Windows waits for sockets only
        if not select.select([sys.stdin], [], [], _WAIT_S)[0]:
            console.note("note: reads the prompt from stdin; --input-text gives another one")


def _check(console: Console, flags: RunFlags, requests: Sequence[PromptRequest]) -> RunFlags:
    """Refuse what can be before a model is loaded; the flags with all draft models."""
    drafters = [(r.name, r.drafter) for r in requests if r.drafter]
    checked = check_model(flags, [(r.name, r.lookahead) for r in requests], drafters)
    expecting = [request.name for request in requests if request.expected_output]
    if expecting and is_trtllm(flags.engine_dir):
        raise refuse_texts(expecting[0], "an expected output")
    if flags.check_lossless:
        check_comparable([("--drafter", flags.options.drafter), *drafters])
    prompts = [(r.name, r.prompt) for r in requests if not (r.is_chat or r.turn)]
    check_template(console, flags.asking, (flags.engine_dir, flags.options.tokenizer_dir), prompts)
    return checked


def _as_messages(llm: LLM, requests: list[PromptRequest]) -> list[PromptRequest]:
    """Spec-Bench's questions as messages, where the model has a template."""
    from trtla.data.prompts import as_chats

    tokenizer = llm.tokenizer if any(request.is_chat for request in requests) else None
    return as_chats(requests) if tokenizer and tokenizer.has_chat_template else requests


def _sized(llm: LLM, requests: Sequence[PromptRequest]) -> list[PromptRequest]:
    """Conversations' turns of the usual length with their shares of the engine's room, of which a
    turn leaves enough to the later ones.
    """
    sized = []
    for i, request in enumerate(requests):
        later = tuple(takewhile(lambda one: one.turn > request.turn, requests[i + 1 :]))  # noqa: B023
        if later and isinstance(request.sampling.max_output_len, UsualLength):
            lengths = [_prompt_len(llm, one) for one in (request, *later)]
            room = (llm.limits.max_text_len - sum(lengths)) // len(lengths)
            length = UsualLength(max(1, min(request.sampling.max_output_len, room)))
            request = replace(request, sampling=replace(request.sampling, max_output_len=length))
        sized.append(request)
    return sized


def _prompt_len(llm: LLM, request: PromptRequest) -> int:
    return len(llm.request(request.prompt, request.sampling, request.name).input_ids)


def _decode_and_report(
    console: Console, llm: LLM, requests: list[PromptRequest], flags: RunFlags
) -> None:
    from trtla.cli.run.transcript import Transcript
    from trtla.results.run import decode, document, lookahead_loss, warm_up

    if flags.check_lossless:
        warm_up(llm, requests[0])  # so that the first of the two runs is not the slow one
    transcript = Transcript(console, requests, stream=flags.stream)
    on_chunk = transcript.chunk if flags.stream else None
    decoded = decode(llm, requests, on_chunk=on_chunk)
    plain = decode(llm, requests, plain=True) if flags.check_lossless else None
    console.note(f"note: ran on {llm.description}")
    if console.json:
        console.document(document(decoded, plain, llm.description), line=flags.stream)
    else:
        transcript.finish(decoded, plain)
        _note_empty(console, decoded)
    if plain is None and not console.quiet and (loss := lookahead_loss(llm, requests, decoded)):
        console.note(f"note: {loss}")
    if plain is not None:
        _require_lossless(decoded, plain)


def _note_empty(console: Console, decoded: Decoded) -> None:
    """Say why there is nothing to read."""
    for done in decoded.completions:
        if done.text == "" and done.finish_reason == "end_id" and len(done.output_ids) == 1:
            index = done.index
            console.note(f"note: text {index} is empty: the model ended it at once")


def _require_lossless(decoded: Decoded, plain: Decoded) -> None:
    from trtla.results.run import divergence

    pairs = zip(decoded.completions, plain.completions, strict=True)
    different = [str(ours.index) for ours, theirs in pairs if divergence(ours, theirs)]
    if different:
        raise CheckFailed(
            f"{len(different)} of {len(plain.completions)} texts differ from plain decoding: "
            f"{', '.join(different[:8])}",
            "a margin near zero is rounding of a low-precision type, try --dtype float32; "
            "a large one is a bug",
        )
