"""The rows that compare arms, and the arms under equal conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean, mean
from typing import TypeVar

from trtla.console import counted
from trtla.report.methods import PLAIN, Method, method
from trtla.report.reading import Source
from trtla.results.bench_documents import EVERY_CATEGORY, Bench, Row
from trtla.results.documents import Run
from trtla.results.tune_documents import Tune
from trtla.settings.sampling import filters_text

Key = TypeVar("Key")
GREEDY = "greedy"


@dataclass(frozen=True)
class ArmRow:
    """An arm under conditions: a row of a document, or one over all tasks."""

    source: int
    model: str
    figures: Row
    sampling: str
    """How tokens are chosen."""
    tasks: int = 0
    """How many it sums up, their slowest and fastest being the range; 0: it is of a document."""
    more_mb: float | None = None
    """Peak memory beyond plain decoding's."""

    @property
    def arm(self) -> str:
        """Its name, without the way to a draft model's folder."""
        parts = (part.partition(":") for part in self.figures.arm.split(","))
        return ",".join(
            f"{kind}:{Path(path).name}" if kind == "draft" and path else kind + colon + path
            for kind, colon, path in parts
        )

    @property
    def name(self) -> str:
        return f"{self.arm} ({self.figures.setting})" if self.figures.setting else self.arm

    @property
    def task(self) -> str | None:
        """None: all of them."""
        return None if self.figures.category == EVERY_CATEGORY else self.figures.category

    @property
    def speedup(self) -> float | None:
        return self.figures.speedup_vs_ar

    @cached_property
    def method(self) -> Method:
        return method(self.arm)

    @property
    def plain(self) -> bool:
        return self.method is PLAIN

    @cached_property
    def conditions(self) -> str:
        """What it was measured under; arms are compared under equal ones only."""
        return self.under(f"batch {self.figures.batch_size}")

    def under(self, batch: str = "") -> str:
        """The conditions, with what is given for the batch size."""
        row = self.figures
        place = [row.executor] if row.executor else [row.device, row.dtype]
        threads = counted(row.threads, "thread") if row.threads else ""
        length = f"prompts of {counted(row.prompt_len, 'token')}" if row.prompt_len else ""
        parts = (self.model, *place, threads, batch, self.sampling, length)
        return ", ".join(part for part in parts if part)


def measured(source: Source) -> list[ArmRow]:
    """The rows of a document that compare arms; summarize and run have tables of their own."""
    match source.document:
        case Bench(settings=settings, rows=rows):
            return [_row(source, settings.model, row) for row in rows]
        case Tune(engine=engine, rows=rows):
            return [_row(source, engine, row) for row in rows]
        case _:
            return []


def _row(source: Source, model: str | None, row: Row) -> ArmRow:
    filters = filters_text(row.temperature, row.top_k, row.top_p)
    sampling = GREEDY if row.temperature == 0 else filters
    return ArmRow(source.number, Path(model or "model not recorded").name, row, sampling)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The arms of one document under its first conditions, the fastest first."""

    source: int
    rows: tuple[ArmRow, ...]
    """Over all tasks."""
    measures: tuple[ArmRow, ...]
    """All of the document's, under whatever conditions."""

    @property
    def conditions(self) -> str:
        return self.rows[0].conditions

    @property
    def best(self) -> ArmRow | None:
        """The fastest arm beside plain decoding."""
        return next((row for row in self.rows if not row.plain and row.speedup is not None), None)


def comparisons(measures: Iterable[ArmRow]) -> list[Comparison]:
    """One comparison a document and model."""
    groups = grouped(measures, lambda one: (one.source, one.model))
    return [_compare(source, members) for (source, _), members in groups.items()]


def grouped(measures: Iterable[ArmRow], key: Callable[[ArmRow], Key]) -> dict[Key, list[ArmRow]]:
    """Measures by what they share, in the order of their first ones."""
    groups: dict[Key, list[ArmRow]] = {}
    for one in measures:
        groups.setdefault(key(one), []).append(one)
    return groups


def _compare(source: int, measures: Sequence[ArmRow]) -> Comparison:
    """Greedy where that was measured, then the smallest batch, then what comes first."""
    first = min(measures, key=lambda one: (one.sampling != GREEDY, one.figures.batch_size))
    here = [one for one in measures if one.conditions == first.conditions]
    plain_mb = _peak(one for one in here if one.plain)
    rows = [
        _over_tasks(members, plain_mb) for members in grouped(here, lambda one: one.name).values()
    ]
    rows.sort(key=lambda one: -(one.speedup or 0.0))
    return Comparison(source, tuple(rows), tuple(measures))


def over_tasks(members: Sequence[ArmRow]) -> float | None:
    """An arm's speed-up over all tasks: as the document has it, else their geometric mean."""
    whole = [one.speedup for one in members if one.task is None and one.speedup is not None]
    ratios = whole or [one.speedup for one in members if one.speedup is not None]
    positive = [ratio for ratio in ratios if ratio > 0]
    return geometric_mean(positive) if positive else None


def _over_tasks(members: Sequence[ArmRow], plain_mb: float | None) -> ArmRow:
    first, peak = members[0], _peak(members)
    tasks = [one for one in members if one.task is not None]
    ratios = [one.speedup for one in tasks if one.speedup is not None]
    known = [one.figures for one in tasks or members if one.figures.equal_texts is not None]
    summed = {
        "category": EVERY_CATEGORY,
        "speedup_vs_ar": over_tasks(members),
        "speedup_vs_ar_min": min(ratios, default=None),
        "speedup_vs_ar_max": max(ratios, default=None),
        "tokens_per_s": _mean(one.figures.tokens_per_s for one in tasks or members),
        "tokens_per_step": _mean(one.figures.tokens_per_step for one in tasks or members),
        "texts": sum(row.texts or 0 for row in known),
        "equal_texts": sum(row.equal_texts or 0 for row in known),
    }
    row = first.figures.model_copy(update=summed)
    more = None if first.plain or peak is None or plain_mb is None else peak - plain_mb
    return ArmRow(first.source, first.model, row, first.sampling, len(ratios), more)


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return mean(found) if found else None


def _peak(members: Iterable[ArmRow]) -> float | None:
    peaks = (one.figures.peak_memory_mb for one in members)
    return max((peak for peak in peaks if peak is not None), default=None)


@dataclass(frozen=True, slots=True)
class Equality:
    """An arm's texts over all conditions of a document."""

    source: int
    name: str
    texts: int
    equal: int
    first: int | None = None
    """The earliest place where a text differs, in tokens; None where that is not recorded."""
    margin: float | None = None
    """The target's top-2 logit margin there."""


def equality(sources: Sequence[Source], measures: Iterable[ArmRow]) -> list[Equality]:
    """The equality of every arm that was compared, in the order of the documents."""
    compared = (one for one in measures if one.figures.equal_texts is not None and not one.plain)
    found = [one for source in sources for one in _of_run(source)]
    for (source, name), members in grouped(compared, lambda one: (one.source, one.name)).items():
        rows = [one.figures for one in members]
        texts, equal = (
            sum(row.texts or 0 for row in rows),
            sum(row.equal_texts or 0 for row in rows),
        )
        places = [row.first_divergence for row in rows if row.first_divergence is not None]
        found.append(Equality(source, name, texts, equal, min(places, default=None)))
    return sorted(found, key=lambda one: one.source)


def _of_run(source: Source) -> Iterator[Equality]:
    if not isinstance(source.document, Run):
        return
    compared = [one for one in source.document.results if one.lossless is not None]
    if not compared:
        return
    places = [one.divergence for one in compared if one.divergence is not None]
    first = min(places, key=lambda found: found.position, default=None)
    yield Equality(
        source.number,
        compared[0].drafter or "run",
        len(compared),
        sum(one.lossless is True for one in compared),
        first.position if first else None,
        first.margin if first else None,
    )
