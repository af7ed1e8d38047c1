"""What tuning comes to: the best triple, whether it is worth it, and where the answer differs.

A triple is recommended only where it is ahead of plain decoding by more than timings scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.tune.prediction import ALL, Row, best
from trtla.tune.verification import Verified

WORTH = 1.02
"""Speed-up from which a triple is recommended in place of plain decoding."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answer for one batch size, and how it changes."""

    lookahead: LookaheadConfig
    batch_size: int
    predicted_speedup: float
    measured_speedup: float | None
    """None where nothing was verified."""
    by_batch_size: tuple[Row, ...]
    by_category: tuple[Row, ...]


def recommend(rows: Sequence[Row], verified: Sequence[Verified]) -> Recommendation:
    """The triple for the first batch size and all categories together.

    Where triples were verified, the fastest of them counts, else the best prediction.
    """
    sizes = list(dict.fromkeys(row.batch_size for row in rows))
    names = list(dict.fromkeys(row.category for row in rows))
    together = ALL if ALL in names else names[0]
    chosen = _chosen(rows, verified, together, sizes[0])
    real = _measured(verified, chosen.lookahead, together, sizes[0])
    return Recommendation(
        chosen.lookahead,
        sizes[0],
        chosen.predicted_speedup,
        real,
        tuple(_chosen(rows, verified, together, size) for size in sizes),
        tuple(_chosen(rows, verified, name, sizes[0]) for name in names if name != ALL),
    )


def _chosen(rows: Sequence[Row], verified: Sequence[Verified], category: str, size: int) -> Row:
    """The best row of a cell, plain decoding's where none is worth it."""
    ranked = best(rows, category, size)
    plain = next(row for row in ranked if row.lookahead == AUTOREGRESSIVE)
    by_triple = {row.lookahead: row for row in ranked}
    real = {
        one.lookahead: one.measured_speedup
        for one in verified
        if (one.category, one.batch_size) == (category, size) and one.lookahead in by_triple
    }
    if len(real) > 1:  # plain decoding is always among them
        fastest = max(real, key=lambda triple: real[triple])
        return by_triple[fastest] if real[fastest] >= WORTH else plain
    return ranked[0] if ranked[0].predicted_speedup >= WORTH else plain


def _measured(
    verified: Sequence[Verified], triple: LookaheadConfig, category: str, size: int
) -> float | None:
    place = (triple, category, size)
    found = [
        v.measured_speedup for v in verified if (v.lookahead, v.category, v.batch_size) == place
    ]
    return found[0] if found else None
