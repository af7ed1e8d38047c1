"""Sentences of the page that help a reader to judge the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtla.console import counted
from trtla.extras.bench.documents import EVERY_CATEGORY, Bench
from trtla.extras.bench.report.figures import ArmRow, Comparison
from trtla.extras.bench.report.reading import Document, Source
from trtla.extras.bench.tune.documents import Choice, Tune
from trtla.results.documents import Run
from trtla.results.rows import Summarize

_LOOPS = 0.5
_FEW_ROUNDS = 3
_FEW_PROMPTS = 2
_FEW_TOKENS = 128


def times(ratio: float) -> str:
    """Format a speed-up, such as 1.73x."""
    return f"{ratio:.2f}x"


def choice_speed(choice: Choice) -> str:
    """Describe a triple's speed-up as measured or predicted."""
    if choice.measured_speedup is not None:
        return f"measured {times(choice.measured_speedup)}"
    predicted = choice.predicted_speedup
    return "-" if predicted is None else f"predicted {times(predicted)}"


def range_text(comparison: Comparison, row: ArmRow) -> str | None:
    """Describe the range of an arm's speed-ups over tasks."""
    ratios = comparison.tasks.get(row.name, ())
    if row.plain or not ratios:
        return None
    return f"{min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} tasks"


def caveats(sources: Sequence[Source], measures: Sequence[ArmRow]) -> Iterator[str]:
    """Yield what flatters or blurs the figures, each in a sentence."""
    yield from _loops(measures)
    yield from _differences(measures)
    yield from _machines(sources)
    if len({row.model for row in measures}) > 1:
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
    looping = [(share, task) for share, task in shares if share is not None and share < _LOOPS]
    if looping:
        tasks = ", ".join(dict.fromkeys(task for _, task in looping if task))
        low = min(share for share, _ in looping)
        yield (
            f"Texts that loop flatter every drafter: under half of the 4-grams are distinct in "
            f"{tasks or 'some texts'} (lowest share {low:.2f})."
        )


def _differences(measures: Sequence[ArmRow]) -> Iterator[str]:
    named = ((row.name, row.figures) for row in measures)
    names = dict.fromkeys(name for name, row in named if row.equal_texts not in (None, row.texts))
    if names:
        yield (
            f"Some texts of {', '.join(names)} differ from plain decoding's. Rounding of "
            "low-precision types does that; trtla run --check-lossless reports the margin there."
        )


def thin(sources: Sequence[Source]) -> Iterator[str]:
    """Yield a sentence for each document with too few measurements to rely on."""
    for source in sources:
        if isinstance(source.document, Tune) and source.document.doubts:
            yield f"tune said of document {source.number}: {'; '.join(source.document.doubts)}."
        elif lack := too_little(source.document):
            yield (
                f"Document {source.number} rests on {lack} only: its figures may "
                "come out otherwise the next time."
            )


def too_little(document: Document) -> str:
    """Describe the few measurements of a document, such as `1 round and 24 tokens`; empty: enough.

    Enough are 2 prompts, 3 rounds and 128 tokens, of those that a document counts. For a document
    of tune it is the first of its doubts.
    """
    if isinstance(document, Tune):
        return next(iter(document.doubts), "")
    return " and ".join(
        counted(count, name)
        for name, count, least in _basis(document)
        if count is not None and 0 < count < least
    )


def _basis(document: Document) -> Iterator[tuple[str, int | None, int]]:
    """Yield what a document counts: the noun, the number, and the number that is enough."""
    match document:
        case Bench(rows=rows):
            texts = {row.category: row.texts or 0 for row in rows}
            tokens = {row.category: row.output_tokens or 0 for row in rows}
            for counts in (texts, tokens):
                counts.pop(EVERY_CATEGORY, None)
            yield "prompt", sum(texts.values()), _FEW_PROMPTS
            yield "round", max((row.rounds or 0 for row in rows), default=0), _FEW_ROUNDS
            yield "token", sum(tokens.values()), _FEW_TOKENS
        case Summarize(items=items, rows=rows):
            yield "article", items, _FEW_PROMPTS
            yield "token", rows[0].output_tokens, _FEW_TOKENS
        case Run(results=results, stats=stats):
            yield "prompt", len(results), _FEW_PROMPTS
            yield "token", stats.output_tokens, _FEW_TOKENS
