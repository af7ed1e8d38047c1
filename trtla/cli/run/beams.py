"""Beam search of `trtla run`: the flags that ask for it, and what does not go with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from trtla.cli.shared.model import is_trtllm
from trtla.cli.shared.params import source
from trtla.errors import UsageError, trtllm_cannot
from trtla.settings.drafting import NO_DRAFTER
from trtla.settings.fields import declared, flag_name
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.sampling import BeamSettings, SamplingParams

if TYPE_CHECKING:
    from trtla.cli.run.flags import RunFlags
    from trtla.llm.prompt import PromptRequest

_DRAWN = "beams are the most probable texts, nothing is drawn"
_OWN_ROWS = "beams are compared by the model's own probabilities"
_UNDRAFTED = "beams are searched without drafts"
_NO_LENGTH_PENALTY = 1.0


def beams_wanted(settings: BeamSettings, most: int | None) -> bool:
    """Return True if the flags ask for beams; `most` is --num-return-sequences."""
    context = click.get_current_context()
    explicit = [name for name in declared(BeamSettings) if source(context, name) != "default"]
    others = [name for name in explicit if name != "num_beams"]
    if settings.length_penalty == _NO_LENGTH_PENALTY and "num_beams" not in explicit:
        others = [name for name in others if name != "length_penalty"]  # run.py's default
    if others and "num_beams" not in explicit:
        flag = flag_name(others[0])
        raise UsageError(f"{flag} needs beams", f"give --num-beams 4, or omit {flag}")
    if (most or 1) > settings.num_beams:
        raise UsageError(
            f"num_return_sequences {most} is above num_beams {settings.num_beams}",
            "use --num-return-sequences at most --num-beams",
        )
    return bool(others) or settings.num_beams > 1


def check_beams(flags: RunFlags, requests: Sequence[PromptRequest]) -> None:
    """Refuse what a search has no use for."""
    if is_trtllm(flags.engine_dir):
        raise trtllm_cannot(
            flags.engine_dir,
            "and trtla builds none with beams",
            "omit --num-beams, or build with --backend torch",
        )
    for setting, reason in (*_excluded(flags), *_excluded_in(requests)):
        raise UsageError(
            f"{setting} does not go with --num-beams: {reason}", "omit it, or --num-beams"
        )


def _excluded(flags: RunFlags) -> Iterator[tuple[str, str]]:
    context, options = click.get_current_context(), flags.options
    by_name = source(context, "processor") != "default"
    for name, reason in _excluded_sampling(flags.sampling):
        flag = "processor" if by_name and name == "temperature" else name
        shown = f" (temperature {flags.sampling.temperature:g})" if name == "temperature" else ""
        given = getattr(flags.sampling.grammar, "given_as", name) if name == "grammar" else flag
        yield flag_name(given) + shown, reason
    if flags.stream:
        yield "--stream", "beams are known when all have ended"
    if flags.check_lossless:
        yield "--check-lossless", "no draft could change them"
    if flags.request_lookahead:
        yield "--request-lookahead", _UNDRAFTED
    if options.lookahead == "auto":
        yield "--lookahead auto", _UNDRAFTED
    for name in ("corpus", "save_corpus"):
        if source(context, name) == "flag":
            yield flag_name(name), _UNDRAFTED
    # Presets and the environment set a drafter for all commands that accept one.
    if source(context, "drafter") == "flag" and options.drafter.name != NO_DRAFTER.name:
        yield "--drafter", _UNDRAFTED


def _excluded_in(requests: Sequence[PromptRequest]) -> Iterator[tuple[str, str]]:
    for request in requests:
        drafter = request.drafter or NO_DRAFTER
        if request.turn:
            yield request.name, "a later turn waits for the answer to the first one"
        for name, reason in _excluded_sampling(request.sampling):
            shown = f" {request.sampling.temperature:g}" if name == "temperature" else ""
            yield f"{name}{shown} of {request.name}", reason
        if request.lookahead not in (None, AUTOREGRESSIVE):
            yield f"lookahead {request.lookahead} of {request.name}", _UNDRAFTED
        if request.expected_output:
            yield f"expected_output of {request.name}", _UNDRAFTED
        if drafter.drafter != NO_DRAFTER.drafter:
            yield f"drafter {drafter.name} of {request.name}", _UNDRAFTED


def _excluded_sampling(sampling: SamplingParams) -> Iterator[tuple[str, str]]:
    if not sampling.greedy:
        yield "temperature", _DRAWN
    yield from ((name, _OWN_ROWS) for name in sampling.beyond)
    for name in ("stop", "stop_token_ids"):
        if getattr(sampling, name):
            yield name, "a beam ends with an end token or --max-output-len"
    if sampling.allotted_time_ms is not None:
        yield "allotted_time_ms", "a search is not cut short"
