"""Rows that compare arms, grouped into comparisons under equal conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from trtla.console import counted
from trtla.extras.bench.documents import EVERY_CATEGORY, whole_category
from trtla.extras.bench.report.methods import PLAIN, Method, method
from trtla.extras.bench.report.reading import Source
from trtla.results.documents import Run
from trtla.results.rows import Row
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
    """The filters of the samples, in words."""
    whole: bool
    """True: the row is over all tasks of its document, or over its only one."""

    @property
    def arm(self) -> str:
        """The arm's name, without the path to a draft model's folder."""
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
        """The task of the row; None: all of them."""
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
        """The conditions of the measurement; only arms under equal ones are compared."""
        return self.under(f"batch {self.figures.batch_size}")

    def under(self, batch: str = "") -> str:
        """Return the conditions with these words for the batch size."""
        row = self.figures
        device = [row.executor] if row.executor else [row.device, row.dtype]
        threads = counted(row.threads, "thread") if row.threads else ""
        length = f"prompts of {counted(row.prompt_len, 'token')}" if row.prompt_len else ""
        parts = (self.model, *device, threads, batch, self.sampling, length)
        return ", ".join(part for part in parts if part)


def measured(source: Source) -> list[ArmRow]:
    """Return the rows of a document that compare arms; a run has none."""
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
    """Rows over all tasks."""
    tasks: dict[str, tuple[float, ...]]
    """The speed-ups of an arm's tasks, by its name; empty if there is one task."""
    measures: tuple[ArmRow, ...]
    """All rows of the document, under any conditions."""

    def more_mb(self, row: ArmRow) -> float | None:
        """Return the peak memory beyond plain decoding's."""
        plain = next((arm.figures.peak_memory_mb for arm in self.rows if arm.plain), None)
        peak = row.figures.peak_memory_mb
        return None if row.plain or peak is None or plain is None else peak - plain

    @property
    def conditions(self) -> str:
        return self.rows[0].conditions

    @property
    def best(self) -> ArmRow | None:
        """The fastest arm except plain decoding."""
        return next((row for row in self.rows if not row.plain and row.speedup is not None), None)


def comparisons(measures: Iterable[ArmRow]) -> list[Comparison]:
    """Return one comparison for each document and model."""
    groups = grouped(measures, lambda row: (row.source, row.model))
    return [_compare(source, members) for (source, _), members in groups.items()]


def grouped(measures: Iterable[ArmRow], key: Callable[[ArmRow], Key]) -> dict[Key, list[ArmRow]]:
    """Group rows by a key, in the order of their first ones."""
    groups: dict[Key, list[ArmRow]] = {}
    for row in measures:
        groups.setdefault(key(row), []).append(row)
    return groups


def _compare(source: int, measures: Sequence[ArmRow]) -> Comparison:
    """Compare arms under greedy decoding if it was measured, then the smallest batch, the first."""
    whole = [row for row in measures if row.whole]
    first = min(whole, key=lambda row: (row.sampling != GREEDY, row.figures.batch_size or 0))
    rows = [row for row in whole if row.conditions == first.conditions]
    rows.sort(key=lambda row: -(row.speedup or 0.0))
    alike = (row for row in measures if row.conditions == first.conditions)
    by_task = [row for row in alike if row.task is not None]
    tasks = {
        name: tuple(row.speedup for row in group if row.speedup is not None)
        for name, group in grouped(by_task, lambda row: row.name).items()
        if len(group) > 1
    }
    return Comparison(source, tuple(rows), tasks, tuple(measures))


@dataclass(frozen=True, slots=True)
class Equality:
    """The equality of an arm's texts with plain decoding's, over all conditions of a document."""

    source: int
    name: str
    texts: int
    equal: int
    first: int | None = None
    """The earliest index of a token that differs; None: it is not recorded."""
    margin: float | None = None
    """The target's top-2 logit margin there."""


def equality(sources: Sequence[Source], measures: Iterable[ArmRow]) -> list[Equality]:
    """Return the equality of every arm that was compared, in the order of the documents."""
    whole = (row for row in measures if row.whole and not row.plain)
    compared = (row for row in whole if row.figures.equal_texts is not None)
    entries = [entry for source in sources for entry in _of_run(source)]
    for (source, name), members in grouped(compared, lambda row: (row.source, row.name)).items():
        rows = [member.figures for member in members]
        texts, equal = (
            sum(row.texts or 0 for row in rows),
            sum(row.equal_texts or 0 for row in rows),
        )
        firsts = [row.first_divergence for row in rows if row.first_divergence is not None]
        entries.append(Equality(source, name, texts, equal, min(firsts, default=None)))
    return sorted(entries, key=lambda entry: entry.source)


def _of_run(source: Source) -> Iterator[Equality]:
    if not isinstance(source.document, Run):
        return
    compared = [result for result in source.document.results if result.lossless is not None]
    if not compared:
        return
    divergences = [result.divergence for result in compared if result.divergence is not None]
    first = min(divergences, key=lambda divergence: divergence.position, default=None)
    yield Equality(
        source.number,
        compared[0].drafter or "run",
        len(compared),
        sum(result.lossless is True for result in compared),
        first.position if first else None,
        first.margin if first else None,
    )
