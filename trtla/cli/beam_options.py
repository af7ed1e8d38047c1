"""--num-beams and what belongs to it: flags of `trtla run`, and printing.

The search is in trtla.results.run; what is refused here is refused before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.options import setting, stack
from trtla.cli.settings import source
from trtla.cli.values import COUNT
from trtla.console import Console
from trtla.errors import UsageError

if TYPE_CHECKING:
    from trtla.data.prompts import PromptRequest
    from trtla.llm.llm import LLM
    from trtla.results.documents import Beam, BeamSearch, PromptBeams
    from trtla.runtime.loop.beams import BeamSettings

_SECTION = "Beam search on torch engines: the most probable texts, with nothing drawn or drafted"
COLUMNS = ("text", "beam", "tokens", "score", "log prob", "finished")


@dataclass(frozen=True, slots=True)
class BeamFlags:
    """The group's values as click parsed them."""

    num_beams: int
    expansions: int
    length_penalty: float
    length_penalty_offset: float
    num_return_sequences: int | None


beam_flags = stack(
    setting(
        "--num-beams",
        section=_SECTION,
        type=int,
        default=1,
        help="Texts that are kept at a time. Prompts are searched one after another, each step "
        "feeding one token a beam: lookahead and other drafters do not apply. 1 is ordinary "
        "decoding, unless expansions or a penalty are given beside it.",
    ),
    setting(
        "--expansions",
        section=_SECTION,
        type=int,
        default=3,
        help="Most probable tokens that every beam is continued with.",
    ),
    setting(
        "--length-penalty",
        section=_SECTION,
        type=float,
        default=1.2,
        help="Exponent of Wu et al.'s length penalty; 0 compares plain log probabilities.",
    ),
    setting(
        "--length-penalty-offset",
        section=_SECTION,
        type=float,
        default=5.0,
        help="The constant in that penalty; no minimum length.",
    ),
    setting(
        "--num-return-sequences",
        section=_SECTION,
        type=COUNT,
        show_default="--num-beams",
        help="Most beams of a prompt to print.",
    ),
)
"""How beams are searched; names as in TensorRT-LLM and transformers where those have them."""

_HOW = ("expansions", "length_penalty", "length_penalty_offset")


def take_beam_flags(flags: dict[str, Any]) -> BeamFlags:
    """Take the group's values out of the running command's flags."""
    return BeamFlags(**{field.name: flags.pop(field.name) for field in fields(BeamFlags)})


def beam_settings(own: BeamFlags) -> BeamSettings | None:
    """What to search with; None: beams are not asked for.

    Raises:
        UsageError: a value is out of its range, or needs beams.
    """
    from trtla.runtime.loop.beams import BeamSettings

    context = click.get_current_context()
    how = [name for name in _HOW if source(context, name) != "default"]
    if how and source(context, "num_beams") == "default":
        flag = _flag(how[0])
        raise UsageError(f"{flag} needs beams", f"give --num-beams 4, or leave {flag} away")
    settings = BeamSettings(
        own.num_beams, own.expansions, own.length_penalty, own.length_penalty_offset
    )
    if (own.num_return_sequences or 1) > own.num_beams:
        raise UsageError(
            f"num_return_sequences {own.num_return_sequences} is above num_beams {own.num_beams}",
            "use --num-return-sequences at most --num-beams",
        )
    return settings if how or own.num_beams > 1 else None


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
    """The texts as TensorRT-LLM's run.py prints beams, then one table."""
    from trtla.cli.transcript import input_line

    for request, prompt in zip(requests, searched.results, strict=True):
        console.out(input_line(prompt.index, request.prompt))
        for place, beam in enumerate(prompt.beams):
            console.out(f'Output [Text {prompt.index} Beam {place}]: "{_shown(beam)}"')
    if not console.quiet:
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
