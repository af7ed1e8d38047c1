"""The page's headline, which never says more than the documents show.

It names the fastest arm, by these rules. A document with too few measurements (`too_little`) only
adds a headline that says so. An arm of ours cannot be faster than its tokens per step; if it is,
that is noise. And if an arm is faster than plain decoding in one document and slower in another,
that is the headline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtla.extras.bench.peers import PEERS
from trtla.extras.bench.report.figures import ArmRow, Comparison
from trtla.extras.bench.report.reading import Source
from trtla.extras.bench.report.sentences import choice_speed, times, too_little
from trtla.extras.bench.tune.documents import Tune
from trtla.results.documents import Run

_SAME = 0.03  # closer to 1 than this is no difference
_ABOVE_S = 1.1  # a speed-up over tokens per step by more than this is noise


@dataclass(frozen=True, slots=True)
class Headline:
    """The one sentence that a reader takes away, and the arm that it names."""

    text: str
    best: tuple[Comparison, ArmRow] | None = None
    """None: no arm is worth a headline."""


def headline(compared: Sequence[Comparison], sources: Sequence[Source]) -> Headline:
    """Return the headline of documents and their comparisons."""
    little = {source.number: text for source in sources if (text := too_little(source.document))}
    enough = [comparison for comparison in compared if comparison.source not in little]
    if (best := _fastest(enough)) is not None:
        doubt = _disagreement(best, enough) or _above_s(best[1])
        return Headline(doubt) if doubt else Headline(_measured(best[1]), best)
    if (few := _fastest(compared)) is not None:
        return Headline(_not_enough(little[few[0].source]))
    for source in sources:
        if sentence := _without_arms(source):
            reason = little.get(source.number)
            return Headline(_not_enough(reason) if reason else sentence)
    return Headline("Nothing in these documents compares a method with plain decoding.")


def _not_enough(reason: str) -> str:
    return f"Not enough to tell what is faster: {reason}."


def _fastest(compared: Sequence[Comparison]) -> tuple[Comparison, ArmRow] | None:
    """Return the fastest arm of all comparisons."""
    known = [(comparison, row) for comparison in compared if (row := comparison.best) is not None]
    return max(known, key=lambda pair: pair[1].speedup or 0.0, default=None)


def _disagreement(best: tuple[Comparison, ArmRow], compared: Sequence[Comparison]) -> str | None:
    """Describe the disagreement if the fastest arm is slow in a document of the same model."""
    comparison, row = best
    others = [
        (arm.speedup, other.source)
        for other in compared
        if other.source != comparison.source
        for arm in other.rows
        if (arm.model, arm.name) == (row.model, row.name) and arm.speedup is not None
    ]
    low, number = min(others, default=(1.0, 0))
    if (row.speedup or 0.0) < 1.0 + _SAME or low >= 1.0:
        return None
    return (
        f"The documents disagree: {row.name} decodes {times(row.speedup or 0.0)} as fast as plain "
        f"decoding in document {comparison.source}, {times(low)} in document {number}."
    )


def _above_s(row: ArmRow) -> str | None:
    """Describe a speed-up above the tokens per step, which is noise; peers count other steps."""
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
        case Run(plain_stats=plain, stats=stats) if plain is not None and plain.tokens_per_s:
            ratio = times(stats.tokens_per_s / plain.tokens_per_s)
            return f"The run is {ratio} as fast as with plain decoding."
        case _:
            return None
