"""The cost curve: the time of a forward by the tokens fed to it, one line a number of sequences.

Both axes are logarithmic: where a line is flat more tokens are free, where it rises they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtla.charts.theme import COLOURS, INK, MARKERS, canvas, settle, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = tuple[int, Sequence[tuple[int, float]]]
_MOST_LINES = len(COLOURS)


def cost_curve(rows: Sequence[Row], *, knee: int | None, title: str) -> Figure:
    """Draw (sequences, [(fed tokens over all, seconds)]), as `CostTable.rows` holds them.

    Args:
        knee: the fed tokens from which more cost more, marked; None where there is no such place.

    Raises:
        ValueError: there are no rows.
        TrtlaError: matplotlib is not installed.
    """
    if not rows:
        raise ValueError("a cost curve needs rows")
    with theme():
        figure, axes = canvas(6.4, 3.9, title)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        shown = _spread(rows)
        for place, row in enumerate(shown):
            _line(axes, place, row)
        if knee is not None:
            _mark(axes, knee)
        _label(axes, many=len(shown) > 1)
        return settle(figure)


def _spread(rows: Sequence[Row]) -> list[Row]:
    """At most as many rows as there are colours, the first and the last among them."""
    if len(rows) <= _MOST_LINES:
        return list(rows)
    step = (len(rows) - 1) / (_MOST_LINES - 1)
    return [rows[round(place * step)] for place in range(_MOST_LINES)]


def _line(axes: Axes, place: int, row: Row) -> None:
    sequences, points = row
    axes.plot(
        [tokens for tokens, _ in points],
        [1000.0 * seconds for _, seconds in points],
        color=COLOURS[place],
        marker=MARKERS[place],
        markersize=4.5,
        linewidth=1.8,
        label=f"{sequences} sequence{'s' if sequences > 1 else ''}",
    )


def _mark(axes: Axes, knee: int) -> None:
    axes.axvline(knee, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.annotate(
        f"knee: {knee} tokens",
        (knee, 0.0),
        xycoords=("data", "axes fraction"),
        xytext=(5, 6),
        textcoords="offset points",
        fontsize=9,
    )


def _label(axes: Axes, *, many: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_locator(LogLocator(base=10.0, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.grid(visible=True)
    axes.set_xlabel("tokens fed in one forward, over all sequences")
    axes.set_ylabel("milliseconds")
    if many:
        axes.legend(loc="best")
