"""Beam search of `trtla run`: the flags that ask for it, and what does not go with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trtla.cli.shared.model import is_trtllm
from trtla.errors import UsageError, trtllm_cannot
from trtla.settings.drafting import NO_DRAFTER
from trtla.settings.fields import declared, flag_name
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.sampling import BeamSettings

if TYPE_CHECKING:
    from trtla.cli.run.flags import RunFlags
    from trtla.llm.prompt import PromptRequest

_UNDRAFTED = "beams are searched without drafts"
_REASONS = {
    "temperature": "beams are the most probable texts, nothing is drawn",
    "stop": "a beam ends with an end token or --max-output-len",
    "stop_token_ids": "a beam ends with an end token or --max-output-len",
    "allotted_time_ms": "a search is not cut short",
    "stream": "beams are known when all have ended",
    "check_lossless": "no draft could change them",
}
_OWN_ROWS = "beams are compared by the model's own probabilities"
_NO_PENALTY = 1.0  # run.py's default of --length_penalty


def beams_wanted(flags: RunFlags) -> bool:
    """Return True if the flags ask for beams."""
    beams, most = flags.beams, flags.num_return_sequences or 1
    how = [*filter(flags.given.explicit, declared(BeamSettings))]
    if how == ["length_penalty"] and beams.length_penalty == _NO_PENALTY:
        how = []
    if how and "num_beams" not in how:
        flag = flag_name(how[0])
        raise UsageError(f"{flag} needs beams", f"give --num-beams 4, or omit {flag}")
    if most > beams.num_beams:
        raise UsageError(
            f"num_return_sequences {most} is above num_beams {beams.num_beams}",
            "use --num-return-sequences at most --num-beams",
        )
    return len(how) > 1 or beams.num_beams > 1


def check_beams(flags: RunFlags, requests: Sequence[PromptRequest]) -> None:
    """Refuse what a search has no use for."""
    if is_trtllm(flags.engine_dir):
        raise trtllm_cannot(
            flags.engine_dir,
            "and trtla builds none with beams",
            "omit --num-beams, or build with --backend torch",
        )
    found = ((f"{name} of {one.name}", why) for one in requests for name, why in _excluded(one))
    for name, reason in (*_excluded_flags(flags), *found):
        raise UsageError(
            f"{name} does not go with --num-beams: {reason}", "omit it, or --num-beams"
        )


def _excluded_flags(flags: RunFlags) -> Iterator[tuple[str, str]]:
    for name in ("stream", "check_lossless"):
        if getattr(flags, name):
            yield flag_name(name), _REASONS[name]
    if flags.options.lookahead == "auto":
        yield "--lookahead auto", _UNDRAFTED
    # Presets and the environment set these for all commands that accept them.
    for name in filter(flags.given.by_flag, ("corpus", "save_corpus", "drafter")):
        if name != "drafter" or flags.options.drafter.name != NO_DRAFTER.name:
            yield flag_name(name), _UNDRAFTED


def _excluded(request: PromptRequest) -> Iterator[tuple[str, str]]:
    sampling, drafter = request.sampling, request.drafter or NO_DRAFTER
    if not sampling.greedy:
        yield f"temperature {sampling.temperature:g}", _REASONS["temperature"]
    for name in sampling.beyond:
        yield getattr(sampling.grammar, "given_as", name) if name == "grammar" else name, _OWN_ROWS
    for name in ("stop", "stop_token_ids", "allotted_time_ms"):
        if getattr(sampling, name):
            yield name, _REASONS[name]
    if request.turn:
        yield "the later turn", "it waits for the answer to the first one"
    if request.lookahead not in (None, AUTOREGRESSIVE):
        yield f"lookahead {request.lookahead}", _UNDRAFTED
    if request.expected_output:
        yield "expected_output", _UNDRAFTED
    if drafter.drafter != NO_DRAFTER.drafter:
        yield f"drafter {drafter.name}", _UNDRAFTED
