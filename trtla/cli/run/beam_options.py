"""--num-beams and what belongs to it: flags of `trtla run`, and printing.

The search is in trtla.results.run; what is refused here is refused before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from trtla.cli.shared.model import ModelFlags, is_trtllm
from trtla.cli.shared.options import options_of, setting, stack
from trtla.cli.shared.params import source
from trtla.cli.shared.values import COUNT
from trtla.console import Console
from trtla.errors import UsageError, trtllm_cannot
from trtla.settings.drafting import NO_DRAFTER
from trtla.settings.fields import declared
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.sampling import BeamSettings, SamplingParams

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.prompt import PromptRequest
    from trtla.results.documents import Beam, BeamSearch, PromptBeams

_SECTION = "Beam search on torch engines: the most probable texts, with nothing drawn or drafted"
COLUMNS = ("text", "beam", "tokens", "score", "log prob", "finished")


beam_flags = stack(
    options_of(BeamSettings, _SECTION, num_beams={"default": 1}),
    setting(
        "--num-return-sequences",
        section=_SECTION,
        type=COUNT,
        show_default="--num-beams",
        help="Most beams of a prompt to print.",
    ),
)
"""How beams are searched; names as in TensorRT-LLM and transformers where those have them."""


def beams_wanted(settings: BeamSettings, most: int | None) -> bool:
    """Whether the flags ask for beams; `most` is --num-return-sequences."""
    context = click.get_current_context()
    others = (name for name in declared(BeamSettings) if name != "num_beams")
    how = [name for name in others if source(context, name) != "default"]
    if how and source(context, "num_beams") == "default":
        flag = _flag(how[0])
        raise UsageError(f"{flag} needs beams", f"give --num-beams 4, or omit {flag}")
    if (most or 1) > settings.num_beams:
        raise UsageError(
            f"num_return_sequences {most} is above num_beams {settings.num_beams}",
            "use --num-return-sequences at most --num-beams",
        )
    return bool(how) or settings.num_beams > 1


def search_and_report(
    console: Console,
    llm: LLM,
    requests: Sequence[PromptRequest],
    settings: BeamSettings,
    most: int | None,
) -> None:
    """Search and print at most so many beams of every prompt."""
    from trtla.results.run import search

    searched = search(llm, requests, settings, most)
    console.note(f"note: ran on {llm.description}")
    if console.json:
        console.document(searched.document())
    else:
        _print(console, requests, searched)


def _print(console: Console, requests: Sequence[PromptRequest], searched: BeamSearch) -> None:
    """The texts as TensorRT-LLM's run.py prints beams, then one table; bare texts when quiet."""
    from trtla.cli.run.transcript import input_line

    if console.quiet:
        for prompt in searched.results:
            for beam in prompt.beams:
                console.out(_shown(beam))
        return
    for request, prompt in zip(requests, searched.results, strict=True):
        console.out(input_line(prompt.index, request.prompt))
        for place, beam in enumerate(prompt.beams):
            console.out(f'Output [Text {prompt.index} Beam {place}]: "{_shown(beam)}"')
    console.out()
    console.table(COLUMNS, [row for prompt in searched.results for row in _rows(prompt)])


def _shown(beam: Beam) -> str:
    return " ".join(map(str, beam.output_ids)) if beam.text is None else beam.text


def _rows(prompt: PromptBeams) -> Iterator[list[object]]:
    for place, beam in enumerate(prompt.beams):
        figures = [f"{value:.4f}" for value in (beam.score, beam.log_prob)]
        ended = "yes" if beam.finished else "no"
        yield [prompt.index, place, len(beam.output_ids), *figures, ended]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_DRAWN = "beams are the most probable texts, nothing is drawn"
_OWN_ROWS = "beams are compared by the model's own probabilities"
_ENDS = "a beam ends with an end token or --max-output-len"
_UNTIMED = "a search is not cut short"
_UNDRAFTED = "beams are searched without drafts"
_FLAGS = {
    "stream": "beams are known when all have ended",
    "check_lossless": "no draft could change them",
    "request_lookahead": _UNDRAFTED,
}


def check_beams(flags: ModelFlags, requests: Sequence[PromptRequest]) -> None:
    """Refuse what a beam search would have to ignore."""
    if is_trtllm(flags.engine_dir):
        raise trtllm_cannot(
            flags.engine_dir,
            "and trtla builds none with beams",
            "omit --num-beams, or build with --backend torch",
        )
    for what, reason in (*_excluded(flags), *_excluded_in(requests)):
        raise UsageError(
            f"{what} does not go with --num-beams: {reason}",
            "omit it, or --num-beams",
        )


def _excluded(flags: ModelFlags) -> Iterator[tuple[str, str]]:
    """(flag, why it is refused) of the command line."""
    context, options = click.get_current_context(), flags.options
    by_name = source(context, "processor") != "default"
    for name, value, reason in _excluded_sampling(flags.sampling):
        flag = "processor" if by_name and name == "temperature" else name
        shown = f" (temperature {value:g})" if name == "temperature" else ""
        yield _flag(flag) + shown, reason
    for name, reason in _FLAGS.items():
        if context.params[name]:
            yield _flag(name), reason
    if options.lookahead == "auto":
        yield "--lookahead auto", _UNDRAFTED
    for name in ("corpus", "save_corpus"):
        if source(context, name) == "flag":
            yield _flag(name), _UNDRAFTED
    # Presets and the environment name a drafter for whatever can be drafted for.
    if source(context, "drafter") == "flag" and options.drafter.name != NO_DRAFTER.name:
        yield "--drafter", _UNDRAFTED


def _excluded_in(requests: Sequence[PromptRequest]) -> Iterator[tuple[str, str]]:
    """(setting, why it is refused) of prompts that bring their own."""
    for request in requests:
        drafter = request.drafter or NO_DRAFTER
        if request.turn:
            yield request.name, "a later turn waits for the answer to the first one"
        for name, value, reason in _excluded_sampling(request.sampling):
            shown = f" {value:g}" if name == "temperature" else ""
            yield f"{name}{shown} of {request.name}", reason
        if request.lookahead not in (None, AUTOREGRESSIVE):
            yield f"lookahead {request.lookahead} of {request.name}", _UNDRAFTED
        if request.expected_output:
            yield f"expected_output of {request.name}", _UNDRAFTED
        if drafter.drafter != NO_DRAFTER.drafter:
            yield f"drafter {drafter.name} of {request.name}", _UNDRAFTED


def _excluded_sampling(sampling: SamplingParams) -> Iterator[tuple[str, float, str]]:
    """(name, temperature, why it is refused) of settings."""
    names = {} if sampling.greedy else {"temperature": _DRAWN}
    names |= dict.fromkeys(sampling.beyond, _OWN_ROWS)
    names |= {"stop": _ENDS} if sampling.stop else {}
    names |= {"allotted_time_ms": _UNTIMED} if sampling.allotted_time_ms is not None else {}
    for name, reason in names.items():
        yield name, sampling.temperature, reason
