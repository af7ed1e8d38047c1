"""--num-beams and what belongs to it: flags of `trtla run`, and printing.

The search is in trtla.results.run; what is refused here is refused before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from trtla.cli.options import options_of, setting, stack
from trtla.cli.settings import source
from trtla.cli.values import COUNT
from trtla.console import Console
from trtla.errors import UsageError
from trtla.settings.fields import declared
from trtla.settings.sampling import BeamSettings

if TYPE_CHECKING:
    from trtla.data.prompts import PromptRequest
    from trtla.llm.llm import LLM
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
    """Whether beams are asked for.

    Args:
        settings: what the flags say.
        most: what --num-return-sequences says.

    Raises:
        UsageError: a flag needs beams.
    """
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
    from trtla.cli.transcript import input_line

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
