"""The rows that compare arms, and the arms under equal conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from trtla.console import counted
from trtla.report.methods import PLAIN, Method, method
from trtla.report.reading import Source
from trtla.results.bench_documents import EVERY_CATEGORY, Row, whole_category
from trtla.results.documents import Run
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
    whole: bool
    """Whether it is over all tasks of its document, or of the only one."""

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
    """The rows of a document that compare arms; those of run have none."""
    if isinstance(source.document, Run):
        return []
    model, rows = source.document.model, source.document.rows
    folder, whole = Path(model or "model not recorded").name, whole_category(rows)
    return [
        ArmRow(source.number, folder, row, _sampling(row), row.category == whole)
        for row in rows
        if row.predicted_speedup is None
    ]


def _sampling(row: Row) -> str:
    filters = filters_text(row.temperature, row.top_k, row.top_p)
    return GREEDY if row.temperature == 0 else filters


@dataclass(frozen=True, slots=True)
class Comparison:
    """The arms of one document under its first conditions, the fastest first."""

    source: int
    rows: tuple[ArmRow, ...]
    """Over all tasks."""
    tasks: dict[str, tuple[float, ...]]
    """The speed-ups of an arm's tasks, by its name; empty where there is one task."""
    measures: tuple[ArmRow, ...]
    """All of the document's, under whatever conditions."""

    def more_mb(self, row: ArmRow) -> float | None:
        """Peak memory beyond plain decoding's."""
        plain = next((one.figures.peak_memory_mb for one in self.rows if one.plain), None)
        peak = row.figures.peak_memory_mb
        return None if row.plain or peak is None or plain is None else peak - plain

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
    whole = [one for one in measures if one.whole]
    first = min(whole, key=lambda one: (one.sampling != GREEDY, one.figures.batch_size or 0))
    rows = [one for one in whole if one.conditions == first.conditions]
    rows.sort(key=lambda one: -(one.speedup or 0.0))
    here = [one for one in measures if one.conditions == first.conditions and one.task is not None]
    tasks = {
        name: tuple(one.speedup for one in own if one.speedup is not None)
        for name, own in grouped(here, lambda one: one.name).items()
        if len(own) > 1
    }
    return Comparison(source, tuple(rows), tasks, tuple(measures))


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
    whole = (one for one in measures if one.whole and not one.plain)
    compared = (one for one in whole if one.figures.equal_texts is not None)
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
