"""What the page says in sentences: the headline, and what a reader needs to judge the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtla.console import counted
from trtla.report.figures import ArmRow, Comparison
from trtla.report.reading import Document, Source
from trtla.results.bench_documents import Ablation, Bench
from trtla.results.documents import Run, Summarize, Tune

_SAME = 0.03  # closer to 1 than this is no difference
_LOOPS = 0.5
_FEW_ROUNDS = 3
_FEW_PROMPTS = 2
_FEW_TOKENS = 128


def times(ratio: float) -> str:
    """A speed-up in words, 1.73x."""
    return f"{ratio:.2f}x"


def headline(found: Sequence[Comparison], sources: Sequence[Source]) -> str:
    """The one sentence that a reader takes away."""
    if (best := best_of(found)) is not None:
        return _measured(*best)
    others = (text for source in sources if (text := _without_arms(source)))
    return next(others, "Nothing in these documents compares a method with plain decoding.")


def best_of(found: Sequence[Comparison]) -> tuple[Comparison, ArmRow] | None:
    """The fastest arm of all comparisons."""
    known = [(one, row) for one in found if (row := one.best) is not None]
    return max(known, key=lambda pair: pair[1].speedup or 0.0, default=None)


def _measured(comparison: Comparison, row: ArmRow) -> str:
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
            ratio = chosen.measured_speedup or chosen.predicted_speedup
            kind = "measured" if chosen.measured_speedup else "predicted"
            speed = f" with {times(ratio)} ({kind})" if ratio else ""
            return f"tune recommends W {w}, N {n}, G {g}{speed}."
        case Summarize() as summarize:
            ratio = side_ratios(summarize).get("trtla")
            return None if ratio is None else _as_fast("Summarizing", ratio)
        case Run(plain_stats=plain, stats=own) if plain is not None and plain.tokens_per_s:
            return _as_fast("The run", own.tokens_per_s / plain.tokens_per_s)
        case _:
            return None


def _as_fast(what: str, ratio: float) -> str:
    return f"{what} is {times(ratio)} as fast as with plain decoding."


def side_ratios(summarize: Summarize) -> dict[str, float]:
    """Each side's speed over plain decoding's; empty where that was not measured."""
    speed = {side.name: side.tokens_per_s for side in summarize.sides}
    plain = speed.get("trtla_without_lookahead")
    return {name: value / plain for name, value in speed.items()} if plain else {}


def range_text(row: ArmRow) -> str | None:
    """The slowest and the fastest task of an arm."""
    low, high = row.figures.speedup_vs_ar_min, row.figures.speedup_vs_ar_max
    if row.plain or row.tasks < 2 or low is None or high is None:
        return None
    return f"{low:.2f} to {high:.2f} over {row.tasks} tasks"


def caveats(sources: Sequence[Source], measures: Sequence[ArmRow]) -> Iterator[str]:
    """What flatters or blurs the figures, each in a sentence."""
    yield from _loops(measures)
    yield from _differences(measures)
    yield from _machines(sources)
    if len({one.model for one in measures}) > 1:
        yield "The documents are of several models: compare figures within a table only."
    yield (
        "Memory on CPUs is the process's resident peak, so small differences between arms say "
        "little."
    )
    yield (
        "All methods here need no training of the model itself. Trained drafters such as EAGLE-3 "
        "or Medusa are usually faster; trtla does not train."
    )


def _machines(sources: Sequence[Source]) -> Iterator[str]:
    silent = [str(source.number) for source in sources if not source.document.environment]
    if len(silent) == 1:
        yield f"Document {silent[0]} does not say which machine it was made on."
    elif silent:
        numbers = f"{', '.join(silent[:-1])} and {silent[-1]}"
        yield f"Documents {numbers} do not say which machine they were made on."


def _loops(measures: Sequence[ArmRow]) -> Iterator[str]:
    shares = [(m.figures.distinct_4grams, m.task) for m in measures]
    found = [(share, task) for share, task in shares if share is not None and share < _LOOPS]
    if found:
        tasks = ", ".join(dict.fromkeys(task for _, task in found if task))
        low = min(share for share, _ in found)
        yield (
            f"Texts that loop flatter every drafter: under half of the 4-grams are distinct in "
            f"{tasks or 'some texts'} (lowest share {low:.2f})."
        )


def _differences(measures: Sequence[ArmRow]) -> Iterator[str]:
    found = ((one.name, one.figures) for one in measures)
    names = dict.fromkeys(name for name, row in found if row.equal_texts not in (None, row.texts))
    if names:
        yield (
            f"Some texts of {', '.join(names)} differ from plain decoding's. Rounding of "
            "low-precision types does that; trtla run --check-lossless reports the margin there."
        )


def thin(sources: Sequence[Source]) -> Iterator[str]:
    """Documents that rest on too little to be relied on, each in a sentence."""
    for source in sources:
        found = [
            counted(count, name)
            for name, count, least in _basis(source.document)
            if count is not None and 0 < count < least
        ]
        if found:
            yield (
                f"Document {source.number} rests on {' and '.join(found)} only: its figures may "
                "come out otherwise the next time."
            )


def _basis(document: Document) -> Iterator[tuple[str, int | None, int]]:
    """Of what a document has how many, and how many are enough."""
    match document:
        case Bench(rows=rows):
            texts = {row.category: row.texts or 0 for row in rows}
            tokens = {row.category: row.output_tokens or 0 for row in rows}
            yield "prompt", sum(texts.values()), _FEW_PROMPTS
            yield "round", max((row.rounds or 0 for row in rows), default=0), _FEW_ROUNDS
            yield "token", sum(tokens.values()), _FEW_TOKENS
        case Ablation(means=means):
            yield "decoding", max((row.rows for row in means), default=0), _FEW_PROMPTS
            lengths = [row.rows * (row.figure("new_tokens_mean") or 0) for row in means]
            yield "token", round(max(lengths, default=0)), _FEW_TOKENS
        case Summarize(items=items):
            yield "article", items, _FEW_PROMPTS
        case Run(results=results, stats=stats):
            yield "prompt", len(results), _FEW_PROMPTS
            yield "token", stats.output_tokens, _FEW_TOKENS
