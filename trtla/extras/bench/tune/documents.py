"""The JSON document of tune: measured rows, the costs of steps, a recommendation."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, FiniteFloat

from trtla.results.documents import Figure, Part, Triple
from trtla.results.rows import Document


class CostRow(Part):
    """Seconds of a forward by fed tokens."""

    sequences: int
    points: tuple[tuple[int, FiniteFloat], ...]


class Cost(Part):
    """The cost curve of an engine."""

    source: str
    """executor: the costs that auto uses on this machine; or roofline."""
    note: str | None = None
    rows: tuple[CostRow, ...]
    knee: int | None = None
    """The most fed tokens whose forward takes at most 1.25 times that of one token."""


class Choice(Part):
    """The best fixed triple of a batch size or of a category, and `auto` for comparison."""

    lookahead: Triple
    batch_size: int | None = None
    category: str | None = None
    predicted_speedup: Figure = None
    """None: the triple was measured."""
    measured_speedup: Figure = None
    auto_speedup: Figure = None
    """The measured speed-up of `auto`, the default; None: it was not measured."""
    keep_auto: bool = False
    """True: no triple was measured ahead of `auto`, which is to be kept."""


class Recommendation(Choice):
    """The triple or `auto` that tune recommends."""

    by_batch_size: tuple[Choice, ...] = ()
    by_category: tuple[Choice, ...] = ()


def _one_text(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


class Tune(Document):
    """`trtla tune --json`.

    Rows are those of the arms in turns: plain decoding, triples, and drafters without a triple. For
    batch sizes without time, and for an engine that does not run here, they are predictions.
    """

    command: str | None = None
    argv: Annotated[str | None, BeforeValidator(_one_text)] = None
    cost: Cost
    recommendation: Recommendation
    finished: bool | None = None
    """False: the budget ended before the search did."""
    doubts: tuple[str, ...] = ()
    """Reasons against the figures: too few tokens or turns, a busy machine."""
    time_s: Figure = None
