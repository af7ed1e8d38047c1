"""Arms against each other under equal conditions: means over tasks, ranges, the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import mean

from trtla.report.measures import GREEDY, Conditions, Measure
from trtla.report.reading import Source
from trtla.results.documents import Run


@dataclass(frozen=True, slots=True)
class Row(Measure):
    """An arm over all tasks; `low` and `high` are the slowest and the fastest task's speed-up."""

    tasks: int = 0
    more_mb: float | None = None
    """Peak memory beyond plain decoding's."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The arms of one document under its first conditions, the fastest first."""

    source: int
    conditions: Conditions
    rows: tuple[Row, ...]
    measures: tuple[Measure, ...]

    @property
    def best(self) -> Row | None:
        return next((row for row in self.rows if not row.plain and row.speedup is not None), None)


def comparisons(measures: Iterable[Measure]) -> list[Comparison]:
    """One comparison a document and model."""
    groups: dict[tuple[int, str], list[Measure]] = {}
    for one in measures:
        groups.setdefault((one.source, one.conditions.model), []).append(one)
    return [_compare(source, members) for (source, _), members in groups.items()]


def primary(measures: Sequence[Measure]) -> Conditions:
    """Greedy where that was measured, then the smallest batch, then what comes first."""
    order = list(dict.fromkeys(one.conditions for one in measures))
    return min(order, key=lambda c: (c.sampling != GREEDY, c.batch_size, order.index(c)))


def _compare(source: int, measures: Sequence[Measure]) -> Comparison:
    chosen = primary(measures)
    here = [one for one in measures if one.conditions == chosen]
    plain_mb = _peak(one for one in here if one.plain)
    rows = [_row(members, plain_mb) for members in by_name(here).values()]
    rows.sort(key=lambda row: -(row.speedup or 0.0))
    return Comparison(source, chosen, tuple(rows), tuple(measures))


def by_name(measures: Iterable[Measure]) -> dict[str, list[Measure]]:
    """Measures by arm."""
    groups: dict[str, list[Measure]] = {}
    for one in measures:
        groups.setdefault(one.name, []).append(one)
    return groups


def over_tasks(members: Sequence[Measure]) -> float | None:
    """An arm's speed-up over all tasks: as the document has it, else their geometric mean."""
    whole = [one.speedup for one in members if one.task is None and one.speedup is not None]
    ratios = [one.speedup for one in members if one.speedup is not None]
    return geometric_mean(whole or ratios)


def _row(members: Sequence[Measure], plain_mb: float | None) -> Row:
    first, peak = members[0], _peak(members)
    tasks = [one for one in members if one.task is not None]
    ratios = [one.speedup for one in tasks if one.speedup is not None]
    known = [one for one in tasks or members if one.texts is not None]
    return Row(
        first.source,
        first.conditions,
        first.arm,
        first.setting,
        None,
        over_tasks(members),
        _mean(one.tokens_per_s for one in tasks or members),
        _mean(one.tokens_per_step for one in tasks or members),
        min(ratios, default=None),
        max(ratios, default=None),
        texts=sum(one.texts or 0 for one in known),
        equal_texts=sum(one.equal_texts or 0 for one in known),
        tasks=len(ratios),
        more_mb=None if first.plain or peak is None or plain_mb is None else peak - plain_mb,
    )


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Of ratios: halving one and doubling another leaves it as it is."""
    positive = [ratio for ratio in ratios if ratio > 0]
    return exp(mean(map(log, positive))) if positive else None


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return mean(found) if found else None


def _peak(members: Iterable[Measure]) -> float | None:
    return max((one.peak_mb for one in members if one.peak_mb is not None), default=None)


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


def equality(sources: Sequence[Source], measures: Iterable[Measure]) -> list[Equality]:
    """Of every arm that was compared, in the order of the documents."""
    groups: dict[tuple[int, str], list[Measure]] = {}
    for one in measures:
        if one.texts is not None and not one.plain:
            groups.setdefault((one.source, one.name), []).append(one)
    found = [_of_arm(source, name, members) for (source, name), members in groups.items()]
    found += [one for source in sources for one in _of_run(source)]
    return sorted(found, key=lambda one: one.source)


def _of_arm(source: int, name: str, members: Sequence[Measure]) -> Equality:
    return Equality(
        source,
        name,
        sum(one.texts or 0 for one in members),
        sum(one.equal_texts or 0 for one in members),
        min((m.first_divergence for m in members if m.first_divergence is not None), default=None),
    )


def _of_run(source: Source) -> Iterator[Equality]:
    if not isinstance(source.document, Run):
        return
    compared = [one for one in source.document.results if one.lossless is not None]
    if not compared:
        return
    first = min(
        (one.divergence for one in compared if one.divergence is not None),
        key=lambda found: found.position,
        default=None,
    )
    yield Equality(
        source.number,
        compared[0].drafter or "run",
        len(compared),
        sum(one.lossless is True for one in compared),
        first.position if first else None,
        first.margin if first else None,
    )
