"""How many texts were compared with plain decoding's, and how many are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trtla.report.documents import Run
from trtla.report.measures import Measure
from trtla.report.methods import is_plain
from trtla.report.reading import Source


@dataclass(frozen=True, slots=True)
class Equality:
    """An arm's texts over all conditions of a document."""

    source: int
    name: str
    texts: int
    equal: int
    first: int | None = None
    """The earliest place where a text differs, in tokens; None where that is not known."""
    margin: float | None = None
    """The target's top-2 logit margin there."""


def equality(sources: Sequence[Source], measures: Iterable[Measure]) -> list[Equality]:
    """Of every arm that was compared, in the order of the documents."""
    groups: dict[tuple[int, str], list[Measure]] = {}
    for one in measures:
        if one.texts is not None and not is_plain(one.arm):
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
