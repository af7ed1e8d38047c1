"""The page's headline, which never says more than the documents show.

It is of the fastest arm, by these rules. A document that rests on too little (`too_little`) counts
only for saying so. An arm of ours cannot be faster than its tokens per step: what is, is noise. And
where two documents have an arm faster and slower than plain decoding, that is the headline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtla.bench.arms import PEERS
from trtla.report.figures import ArmRow, Comparison
from trtla.report.reading import Source
from trtla.report.sentences import choice_speed, times, too_little
from trtla.results.documents import Run
from trtla.results.tune_documents import Tune

_SAME = 0.03  # closer to 1 than this is no difference
_ABOVE_S = 1.1  # a speed-up over tokens per step by more than this is noise


@dataclass(frozen=True, slots=True)
class Headline:
    """The one sentence that a reader takes away, and the arm that it is of."""

    text: str
    best: tuple[Comparison, ArmRow] | None = None
    """None: no arm is worth a headline."""


def headline(found: Sequence[Comparison], sources: Sequence[Source]) -> Headline:
    """The headline of documents and their comparisons."""
    little = {one.number: text for one in sources if (text := too_little(one.document))}
    enough = [one for one in found if one.source not in little]
    if (best := _fastest(enough)) is not None:
        doubt = _disagreement(best, enough) or _above_s(best[1])
        return Headline(doubt) if doubt else Headline(_measured(best[1]), best)
    if (few := _fastest(found)) is not None:
        return Headline(_not_enough(little[few[0].source]))
    for source in sources:
        if said := _without_arms(source):
            reason = little.get(source.number)
            return Headline(_not_enough(reason) if reason else said)
    return Headline("Nothing in these documents compares a method with plain decoding.")


def _not_enough(what: str) -> str:
    return f"Not enough to tell what is faster: {what}."


def _fastest(found: Sequence[Comparison]) -> tuple[Comparison, ArmRow] | None:
    """The fastest arm of all comparisons."""
    known = [(one, row) for one in found if (row := one.best) is not None]
    return max(known, key=lambda pair: pair[1].speedup or 0.0, default=None)


def _disagreement(best: tuple[Comparison, ArmRow], found: Sequence[Comparison]) -> str | None:
    """What another document of the same model says against an arm that is faster here."""
    comparison, row = best
    others = [
        (one.speedup, other.source)
        for other in found
        if other.source != comparison.source
        for one in other.rows
        if (one.model, one.name) == (row.model, row.name) and one.speedup is not None
    ]
    low, number = min(others, default=(1.0, 0))
    if (row.speedup or 0.0) < 1.0 + _SAME or low >= 1.0:
        return None
    return (
        f"The documents disagree: {row.name} decodes {times(row.speedup or 0.0)} as fast as plain "
        f"decoding in document {comparison.source}, {times(low)} in document {number}."
    )


def _above_s(row: ArmRow) -> str | None:
    """Why a speed-up is not believed; peers' steps are not ours, and say nothing of it."""
    ratio, steps = row.speedup or 0.0, row.figures.tokens_per_step
    if row.arm in PEERS or steps is None or ratio < 1.0 + _SAME or ratio <= _ABOVE_S * steps:
        return None
    return (
        f"Not enough to tell what is faster: {row.name} measured {times(ratio)}, which "
        f"{steps:.2f} tokens a step cannot give."
    )


def _measured(row: ArmRow) -> str:
    ratio = row.speedup or 0.0
    if ratio >= 1.0 + _SAME:
        arm = row.arm.replace("lookahead", "Lookahead", 1)
        return f"{arm} decodes {times(ratio)} as fast as plain decoding."
    if ratio > 1.0 - _SAME:
        return f"Nothing is faster than plain decoding here; {row.arm} is as fast ({times(ratio)})."
    return f"Nothing is faster than plain decoding here; {row.arm} comes nearest, {times(ratio)}."


def _without_arms(source: Source) -> str | None:
    match source.document:
        case Tune(recommendation=chosen):
            if chosen.keep_auto:
                auto = times(chosen.auto_speedup or 1.0)
                return f"tune recommends auto, the default, with {auto} (measured)."
            w, n, g = chosen.lookahead
            return f"tune recommends W {w}, N {n}, G {g}: {choice_speed(chosen)}."
        case Run(plain_stats=plain, stats=own) if plain is not None and plain.tokens_per_s:
            ratio = times(own.tokens_per_s / plain.tokens_per_s)
            return f"The run is {ratio} as fast as with plain decoding."
        case _:
            return None
