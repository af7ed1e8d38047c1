"""`trtla run`: prompts in, lookahead-decoded text out.

Prompts come from `data.prompts`, answers from `results.run`; `cli.run.transcript` prints them.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from trtla.cli.run.flags import RunFlags
from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.flags import flags_as
from trtla.cli.shared.model import (
    Named,
    check_model,
    is_trtllm,
    model_at,
    note_loading,
    note_without_drafts,
    open_llm,
    save_corpus,
    use_end,
)
from trtla.cli.shared.outputs import check_folder, model_files
from trtla.cli.shared.templates import check_template
from trtla.cli.shared.upstream import upstream_lists, upstream_values
from trtla.cli.shared.values import COUNT, TEXT
from trtla.console import Console
from trtla.errors import UsageError
from trtla.formats.families import stored_architecture
from trtla.formats.model_folder import CONFIG
from trtla.machine import process_rank
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings, refuse_texts
from trtla.settings.fields import declared, flag_name
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.messages import Rendering, is_conversation
from trtla.settings.sampling import USUAL_LEN, BeamSettings, SamplingParams, UsualLength
from trtla.settings.upstream.programs import RUN

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.prompt import PromptRequest
    from trtla.results.documents import BeamSearch
    from trtla.results.run import Decoded


_BEAMS = "Beam search on torch engines: the most probable texts, with nothing drawn or drafted"
_LENGTH = f"the room that is left, at most {USUAL_LEN} or a --max-batch-size-th of the context"


@click.command(
    cls=Command,
    instead_of=RUN,
    short_help="Prompts -> text, with lookahead decoding.",
    examples=[
        "trtla run model.gguf 'Once upon a time'",
        "trtla run model.gguf -p 'Why is the sky blue?' 'What is a tree?' --chat --check-lossless",
        "trtla run model.gguf 'A date: ' --regex '[0-9]{4}-[0-9]{2}-[0-9]{2}'",
        "trtla run engine --input-file prompts.jsonl --json > results.json",
        "trtla run engine --input-text 'def f(' --request-lookahead 3,3,3 --stream",
        "cat prompt.txt | trtla run engine -q > answer.txt",
        "trtla run engine --input-text 'Once upon' --num-beams 4 --json",
        "trtla run engine --input-text 'Once upon' 'To be, or not'",
    ],
)
@opt.model_flags()
@click.argument("prompt", type=TEXT, required=False)
@opt.flags_of(RunFlags)
@opt.chat_flags
@opt.setting(
    "--max-batch-size",
    section="Model",
    type=COUNT,
    show_default="the engine's",
    help="Requests in flight at a time, at most the engine's.",
)
@opt.length_flag(default=USUAL_LEN, show_default=_LENGTH)
@opt.sampling_flags
@opt.processor_flag
@opt.stop_flags
@opt.end_flag
@opt.grammar_flags
@opt.options_of(
    SamplingParams, "Sampling", only=("allotted_time_ms",), allotted_time_ms={"type": COUNT}
)
@opt.options_of(BeamSettings, _BEAMS, num_beams={"default": 1})
@opt.setting(
    "--num-return-sequences",
    section=_BEAMS,
    type=COUNT,
    show_default="--num-beams",
    help="Most beams of a prompt to print.",
)
@opt.drafter_flags
@opt.corpus_flags
@opt.draft_flags
@opt.trtllm_flags
@opt.json_flag(
    "Print one JSON document; with --stream a line a chunk, then the document.", "Output"
)
@opt.color_flag("Colour the tokens that were accepted in parallel.")
@click.pass_obj
def run(console: Console, /, **params: Any) -> None:
    """Decode prompts, all in one in-flight batch.

    Prints each text as TensorRT-LLM's run.py does, then a table, whose tokens/s are those after the
    prompts; with --quiet the bare texts.
    Tokens per step, without each text's first, show the gain of lookahead. A low share of distinct
    4-grams shows that the text loops, which makes the gain look larger.
    """
    if (prompt := params.pop("prompt")) is not None:
        params["input_text"] = (prompt, *params["input_text"])
    flags = flags_as(RunFlags, params)
    console.color = flags.color
    by_beams = _by_beams(flags)
    # mpirun gives stdin to rank 0 only; other ranks have no prompts of their own.
    requests = _requests(console, flags) if not process_rank() else []
    if by_beams:
        from trtla.cli.run.beams import check_beams

        check_beams(flags, requests)
    _check_files(flags)
    flags = _check(console, flags, requests)
    if not by_beams:
        triple, drafter = flags.drafting
        drafting = [(r.lookahead or triple, r.drafter or drafter) for r in requests]
        note_without_drafts(console.note, flags.engine_dir, drafting)
    note_loading(console, flags.engine_dir)
    by_default = not by_beams and not (requests and all(each.drafter for each in requests))
    with open_llm(flags, find_head=flags.options.find_head and by_default) as llm:
        if not llm.is_leader:  # a serving rank of mpirun: leaving the block serves to the end
            return
        from trtla.cli.run.transcript import decode_and_report, search_and_report

        requests = _unpadded(llm, requests)
        use_end(llm, flags.end_id)
        requests = _sized(llm, _as_messages(llm, requests))
        result: Decoded | BeamSearch
        if by_beams:
            most = flags.num_return_sequences
            result = search_and_report(console, llm, requests, flags.beams, most)
        else:
            _note_gamma(console, flags, llm, requests)
            at_terminal = sys.stdout.isatty() and not console.json
            stream = flags.stream or at_terminal
            how = {"stream": stream, "check_lossless": flags.check_lossless, "wide": flags.wide}
            result = decode_and_report(console, llm, requests, **how)
        _save_ids(flags, llm, result)
        save_corpus(console, llm, flags.save_corpus)


def _note_gamma(
    console: Console, flags: RunFlags, llm: LLM, requests: Sequence[PromptRequest]
) -> None:
    """Print a note where --gamma is given, and nothing that drafts has a use for it."""
    drafters = [request.drafter or llm.limits.drafter for request in requests]
    if flags.given.by_flag("gamma") and not any(drafter.most_tokens for drafter in drafters):
        console.note(f"note: --gamma has no effect on the drafter {drafters[0].name}")


def _by_beams(flags: RunFlags) -> bool:
    """Return True if the flags ask for beams."""
    if not any(map(flags.given.explicit, ("num_return_sequences", *declared(BeamSettings)))):
        return False
    from trtla.cli.run.beams import beams_wanted

    return beams_wanted(flags)


def _check_files(flags: RunFlags) -> None:
    """Refuse files that cannot be written before a model is loaded."""
    files = model_files(flags.engine_dir, ".csv", ".npy")
    for name in ("output_csv", "output_npy"):
        if (path := getattr(flags, name)) is not None:
            check_folder(Path(path), flag_name(name), flags.input_file, *files)


def _save_ids(flags: RunFlags, llm: LLM, result: Decoded | BeamSearch) -> None:
    if flags.output_csv is None and flags.output_npy is None:
        return
    from trtla.results.token_files import save_ids

    save_ids(result, min(llm.end_ids, default=0), flags.output_csv, flags.output_npy)


def _requests(console: Console, flags: RunFlags) -> list[PromptRequest]:
    from trtla.data.prompts import gather, with_stops

    if flags.no_lookahead and (flags.request_lookahead or flags.given.by_flag("lookahead")):
        other = "--request-lookahead" if flags.request_lookahead else "--lookahead"
        raise UsageError(f"--no-lookahead and {other} exclude each other", "omit one of them")
    if not flags.input_text and flags.input_file is None:
        _announce_stdin(console)
    texts, file, triples = flags.input_text, flags.input_file, flags.request_lookahead
    how = (flags.sampling, triples, flags.options.drafter, flags.asking, flags.expected_output)
    requests = gather(texts, file, *how, Rendering.of(flags.continue_final_message))
    requests = with_stops(requests, upstream_lists(flags.given.context, "stop_words"))
    if not flags.no_lookahead:
        return requests
    return [replace(request, lookahead=AUTOREGRESSIVE) for request in requests]


_WAIT_S = 1.0
"""Time after which a pipe without input is worth a note."""


def _announce_stdin(console: Console) -> None:
    """Print a note where stdin is a pipe that nobody writes to, which would look like a hang."""
    from trtla.data.prompts import piped

    if not piped():
        return
    with suppress(OSError):  # Windows waits for sockets only
        if not select.select([sys.stdin], [], [], _WAIT_S)[0]:
            console.note("note: reads the prompt from stdin; --input-text gives another one")


def _check(console: Console, flags: RunFlags, requests: Sequence[PromptRequest]) -> RunFlags:
    """Refuse what can be checked before a model is loaded; return the flags with draft models."""
    drafters = [(r.name, r.drafter) for r in requests if r.drafter]
    checked = check_model(flags, [(r.name, r.lookahead) for r in requests], drafters)
    options = flags.options
    expecting = [request.name for request in requests if request.expected_output]
    if expecting and is_trtllm(flags.engine_dir):
        raise refuse_texts(expecting[0], "an expected output")
    if flags.check_lossless:
        _check_comparable([("--drafter", options.drafter), *drafters])
        if flags.no_lookahead or options.drafter.drafter == NO_DRAFTER.drafter:
            console.note("note: nothing is drafted: --check-lossless decodes plainly twice")
    firsts = [request for request in requests if not (request.is_chat or request.turn)]
    others = [request for request in firsts if not isinstance(request.prompt, str)]
    chats = [(r.name, r.prompt, r.rendering) for r in others if is_conversation(r.prompt)]
    unwrapped = "no_prompt_template" in upstream_values(flags.given.context)
    texts = len(others) < len(firsts) and not unwrapped
    check_template(console, flags.asking, flags.engine_dir, options, chats, any_texts=texts)
    config = model_at(flags.engine_dir).folder.object(CONFIG)
    if console.advice and stored_architecture(config) in _WRAPPED_THERE:
        console.advice = _AS_THEY_ARE
    return checked


def _check_comparable(drafters: Named[DrafterSettings]) -> None:
    """Refuse to compare samples that only share a distribution."""
    for name, settings in drafters:
        if settings.rejection:
            raise UsageError(
                f"{name} asks for rejection, which draws other samples of the same distribution",
                "omit --check-lossless or --rejection",
            )


_WRAPPED_THERE = ("Qwen2ForCausalLM",)
_AS_THEY_ARE = (
    "note: texts go to the model as they are; run.py of TensorRT-LLM wraps those of Qwen2 in its "
    "chat template unless --no_prompt_template is given: use --chat for that"
)


def _ids(request: PromptRequest) -> tuple[int, ...]:
    """The prompt of a request that has ids."""
    return cast("tuple[int, ...]", request.prompt)


def _unpadded(llm: LLM, requests: Sequence[PromptRequest]) -> list[PromptRequest]:
    """The prompts without the padding of arrays, which run.py drops wherever it stands."""
    if not any(request.padded for request in requests):
        return list(requests)
    from trtla.llm.open import pad_ids

    pads = pad_ids(llm.tokenizer, llm.end_ids)
    return [
        replace(request, prompt=tuple(id_ for id_ in _ids(request) if id_ not in pads))
        if request.padded
        else request
        for request in requests
    ]


def _as_messages(llm: LLM, requests: list[PromptRequest]) -> list[PromptRequest]:
    """Spec-Bench's questions as messages, where the model has a template."""
    from trtla.data.prompts import as_chats

    tokenizer = llm.tokenizer if any(request.is_chat for request in requests) else None
    return as_chats(requests) if tokenizer and tokenizer.has_chat_template else requests


def _sized(llm: LLM, requests: Sequence[PromptRequest]) -> list[PromptRequest]:
    """Shorten turns of the usual length so that later turns of a conversation have room."""
    sized = []
    for i, request in enumerate(requests):
        later = tuple(takewhile(lambda turn: turn.turn > request.turn, requests[i + 1 :]))  # noqa: B023
        if later and isinstance(request.sampling.max_output_len, UsualLength):
            lengths = [len(llm.request(turn).input_ids) for turn in (request, *later)]
            room = (llm.limits.max_text_len - sum(lengths)) // len(lengths)
            sampling = request.sampling.fitted(room, llm.limits.usual_output_len)
            request = replace(request, sampling=sampling)
        sized.append(request)
    return sized
