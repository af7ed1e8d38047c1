"""Real steps for `StepTime`: short looks at plain decoding and at triples, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from trtla.settings.drafting import LOOKAHEAD
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.tune.measurements import Measurements
from trtla.tune.samples import Sample
from trtla.tune.step_time import Timed

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.runtime.costs import CostTable

_LOOKED_AT = ((1, 2, 1), (2, 2, 2), (1, 4, 1), (3, 4, 2), (5, 5, 5), (7, 7, 7))
"""Triples that are timed beside plain decoding: steps of 2 to 84 tokens."""
_LEAST_STEPS = 4
_ENOUGH = 3
"""Turns beside verified rounds that stand for themselves."""
_PLAIN = str(AUTOREGRESSIVE)
BESIDE = "beside"


def looked_at(limit: LookaheadConfig) -> list[LookaheadConfig]:
    """Plain decoding, and the triples to time within a limit."""
    found = [LookaheadConfig(*sizes) for sizes in _LOOKED_AT]
    return [AUTOREGRESSIVE, *(triple for triple in found if triple.fits(limit))]


def worth_timing(
    triples: Sequence[LookaheadConfig], table: CostTable, sequences: int
) -> list[LookaheadConfig]:
    """Those that could pay: a step brings at most N tokens a sequence, and rarely two thirds."""
    plain = table.seconds(sequences, sequences)
    return [
        triple
        for triple in triples
        if triple.is_autoregressive
        or table.seconds(sequences * triple.max_decoding_tokens, sequences)
        < triple.ngram_size * plain
    ]


def calibrate(
    llm: LLM,
    name: str,
    samples: Sequence[Sample],
    triples: Sequence[LookaheadConfig],
    sequences: int,
    kept: Measurements,
    turns: Turns,
) -> list[Timed]:
    """Time steps of the triples with some samples, in turns, and tell the medians.

    Turn k begins with sample k, so that short and long prompts are seen. Where there are enough
    turns that were taken beside verified rounds, these alone count: machines change.

    Args:
        name: what the samples are, to keep what is timed.
        sequences: the batch size; samples are repeated where there are fewer.

    Returns:
        One for each triple; none for texts that end too early to see a step.
    """
    prefix = timed_name(name, sequences)
    for turn in range(turns.count):
        place = f"{prefix}{turns.kind} {turn}"
        late = turn and time.monotonic() > turns.deadline
        if late or kept.get(place) is not None:
            continue
        batch = [samples[(turn + row) % len(samples)] for row in range(sequences)]
        looks = {str(one): _look(llm, batch, one, turns.limit_s) for one in triples}
        kept.put(place, {key: asdict(look) for key, look in looks.items() if look})
    beside = kept.names(f"{prefix}{BESIDE}")
    places = beside if len(beside) >= _ENOUGH else kept.names(prefix)
    return _middles([kept.get(place) for place in places])


def timed_name(name: str, sequences: int) -> str:
    """How the names of what is timed begin."""
    return f"steps {name} {sequences} "


@dataclass(frozen=True, slots=True)
class Turns:
    """How often and how long to look."""

    count: int
    """Turns to have at the end; those of before count."""
    limit_s: float
    """Of a look at one triple; the slow ones are looked at for fewer steps."""
    deadline: float
    """On time.monotonic's clock; one turn is taken in any case."""
    kind: str = "turn"
    """`turn`, or `BESIDE` verified rounds."""


def _middles(turns: Sequence[dict[str, dict[str, Any]]]) -> list[Timed]:
    """Medians by triple, of ratios to plain decoding in the same turn.

    What disturbs a turn disturbs all of it.
    """
    looks = [{name: Timed(**one) for name, one in turn.items()} for turn in turns]
    whole = [turn for turn in looks if _PLAIN in turn]
    names = dict.fromkeys(name for turn in whole for name in turn)
    plain = [turn[_PLAIN] for turn in whole]
    return [
        _middle([(turn[name], turn[_PLAIN]) for turn in whole if name in turn], plain)
        for name in names
    ]


def _middle(pairs: Sequence[tuple[Timed, Timed]], plain: Sequence[Timed]) -> Timed:
    def scaled(figure: Callable[[Timed], float]) -> float:
        ratio = median(figure(look) / figure(base) for look, base in pairs)
        return ratio * median(map(figure, plain))

    first = pairs[0][0]
    return Timed(
        first.sequences,
        median(look.fed for look, _ in pairs),
        scaled(lambda one: one.forward_s),
        scaled(lambda one: one.step_s),
        scaled(lambda one: one.prefill_s / one.prompt_tokens) * first.prompt_tokens,
        first.prompt_tokens,
        tuple(size for look, _ in pairs for size in look.sizes),
    )


def _look(
    llm: LLM, batch: Sequence[Sample], triple: LookaheadConfig, limit_s: float
) -> Timed | None:
    """Decode until the time is over or the first request ends; only whole steps count.

    A mark is set where the first chunk of a new step arrives.
    """
    given = ([s.prompt for s in batch], [s.sampling for s in batch], triple)
    started = time.perf_counter()
    waiting, step = set(range(len(batch))), llm.stats().steps
    marks: list[tuple[float, int, float, int]] = []
    for chunk in llm.stream(*given, drafter=LOOKAHEAD):
        waiting.discard(chunk.index)
        stats, now = llm.stats(), time.perf_counter()
        if stats.steps != step:
            step = stats.steps
            if not waiting or marks:
                marks.append((now, step, stats.forward_s or 0.0, stats.fed or 0))
            if len(marks) > _LEAST_STEPS and now - started > limit_s:
                break
        elif not waiting and not marks:
            marks.append((now, step, stats.forward_s or 0.0, stats.fed or 0))
        if chunk.completion is not None:
            break
    return _timed(marks, batch, started)


def _timed(
    marks: Sequence[tuple[float, int, float, int]], batch: Sequence[Sample], started: float
) -> Timed | None:
    if len(marks) < 2:
        return None
    (begin, first, forward, fed), (end, last, forward_after, fed_after) = marks[0], marks[-1]
    steps = last - first
    return Timed(
        len(batch),
        (fed_after - fed) / steps,
        (forward_after - forward) / steps,
        (end - begin) / steps,
        begin - started,
        sum(len(sample.prompt) for sample in batch),
        tuple(_sizes(marks)),
    )


def _sizes(marks: Sequence[tuple[float, int, float, int]]) -> Iterator[float]:
    """What each step fed, from one mark to the next."""
    for (_, first, _, fed), (_, last, _, fed_after) in pairwise(marks):
        yield from [(fed_after - fed) / (last - first)] * (last - first)
