"""The JSON document of tune: rows of what was measured, what steps cost, a recommendation."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, FiniteFloat

from trtla.results.bench_documents import Document
from trtla.results.documents import Figure, Part, Triple


class CostRow(Part):
    """Seconds of a forward by fed tokens."""

    sequences: int
    points: tuple[tuple[int, FiniteFloat], ...]


class Cost(Part):
    """The cost curve of an engine."""

    source: str
    """executor: what auto counts with on this machine; or roofline."""
    note: str | None = None
    rows: tuple[CostRow, ...]
    knee: int | None = None
    """The most fed tokens whose forward takes at most 1.25 times that of one token."""


class Choice(Part):
    """The best fixed triple of a batch size, or of a category, beside `auto`."""

    lookahead: Triple
    batch_size: int | None = None
    category: str | None = None
    predicted_speedup: Figure = None
    """None where it was measured."""
    measured_speedup: Figure = None
    auto_speedup: Figure = None
    """The speed-up of `auto`, the default, as measured; None: it was not."""
    keep_auto: bool = False
    """Whether `auto` is to be kept: no triple was measured ahead of it."""


class Recommendation(Choice):
    """What tune would run."""

    by_batch_size: tuple[Choice, ...] = ()
    by_category: tuple[Choice, ...] = ()


def _one_text(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


class Tune(Document):
    """`trtla tune --json`.

    Rows are of what was measured in turns: plain decoding, triples, and drafters without one. Of
    batch sizes without time, and for an engine that does not run here, they are predictions.
    """

    command: str | None = None
    argv: Annotated[str | None, BeforeValidator(_one_text)] = None
    cost: Cost
    recommendation: Recommendation
    finished: bool | None = None
    """False: the budget was over before the search was."""
    doubts: tuple[str, ...] = ()
    """What tune has said against its figures: too few tokens or turns, a busy machine."""
    time_s: Figure = None
