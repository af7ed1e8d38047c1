"""A tuning as pictures: the best speed-up of each W and N, and the cost curve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtla.tune.prediction import ALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtla.tune.prediction import Row
    from trtla.tune.settings import Tuned

FILES = ("heat_map.svg", "heat_map.png", "cost_curve.svg", "cost_curve.png")


def draw(tuned: Tuned, folder: Path) -> list[Path]:
    """Write all pictures; the paths.

    Raises:
        TrtlaError: matplotlib is missing.
        UsageError: a file cannot be written.
    """
    from trtla.charts import cost_curve, heat_map, save

    chosen = tuned.recommendation
    triple = chosen.lookahead
    bound = tuned.cost.source == "roofline"
    heat = heat_map(
        best_over_sets(tuned.rows, chosen.batch_size),
        x_label="window W",
        y_label="n-gram N",
        value_label="predicted speed-up at the best G",
        title=f"Speed-up over plain decoding, batch size {chosen.batch_size}",
        marked=None if triple.is_autoregressive else (triple.window_size, triple.ngram_size),
    )
    curve = cost_curve(
        tuned.cost.table.rows,
        knee=tuned.cost.knee,
        title="Bound of a step by fed tokens" if bound else "Time of a forward by fed tokens",
    )
    figures = (heat, heat, curve, curve)
    for name, figure in zip(FILES, figures, strict=True):
        save(figure, folder / name)
    return [folder / name for name in FILES]


def best_over_sets(rows: Sequence[Row], batch_size: int) -> dict[tuple[int, int], float]:
    """The best predicted speed-up over G for each (W, N), of all categories together."""
    names = {row.category for row in rows}
    together = ALL if ALL in names else next(iter(names))
    found: dict[tuple[int, int], float] = {}
    for row in rows:
        if (row.category, row.batch_size) == (together, batch_size):
            place = (row.lookahead.window_size, row.lookahead.ngram_size)
            found[place] = max(found.get(place, 0.0), row.predicted_speedup)
    return found
