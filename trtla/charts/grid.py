"""Heat maps: a number for each pair of settings, as a colour and in digits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from trtla.charts.theme import INK, canvas, settle, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

_COLOURS = "cividis"  # even steps in brightness, for all eyes
_ON_DARK, _ON_LIGHT = "#ffffff", "#0b0b0b"
_CELL_W, _CELL_H = 0.62, 0.42  # inches


def heat_map(
    values: Mapping[tuple[int, int], float],
    *,
    x_label: str,
    y_label: str,
    value_label: str,
    title: str,
    marked: tuple[int, int] | None = None,
) -> Figure:
    """Draw values by (x, y); pairs may be missing.

    Args:
        marked: the pair to frame, e.g. the one that is recommended.

    Raises:
        ValueError: there are no values.
        TrtlaError: matplotlib is not installed.
    """
    if not values:
        raise ValueError("a heat map needs values")
    columns = sorted({x for x, _ in values})
    rows = sorted({y for _, y in values})
    with theme():
        size = (1.4 + _CELL_W * len(columns), 2.1 + _CELL_H * len(rows))
        figure, axes = canvas(max(size[0], 4.9), max(size[1], 3.2), title)
        colours = _scale(values)
        places = {
            pair: (columns.index(pair[0]), rows.index(pair[1]), value)
            for pair, value in values.items()
        }
        for column, row, value in places.values():
            _cell(axes, column, row, value, colours)
        _label(axes, columns, rows, x_label, y_label)
        if marked in places:
            _frame(axes, *places[marked][:2])
        _colour_bar(figure, axes, colours, value_label, values.values())
        return settle(figure)


def _scale(values: Mapping[tuple[int, int], float]) -> Normalize:
    from matplotlib.colors import Normalize

    low, high = min(values.values()), max(values.values())
    return Normalize(low, high if high > low else low + 1.0)


def _cell(axes: Axes, column: int, row: int, value: float, scale: Normalize) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colour = colormaps[_COLOURS](float(scale(value)))
    brightness = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, linewidth=0))
    axes.text(
        column,
        row,
        f"{value:.2f}",
        ha="center",
        va="center",
        fontsize=9,
        color=_ON_LIGHT if brightness > 0.5 else _ON_DARK,
    )


def _label(axes: Axes, columns: list[int], rows: list[int], x_label: str, y_label: str) -> None:
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.set_xticks(range(len(columns)), [str(value) for value in columns])
    axes.set_yticks(range(len(rows)), [str(value) for value in rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def _frame(axes: Axes, column: int, row: int) -> None:
    from matplotlib.patches import Rectangle

    place = (column - 0.5, row - 0.5)
    frame = Rectangle(place, 1, 1, fill=False, edgecolor="#d55e00", linewidth=2.6)
    frame.set_clip_on(False)
    axes.add_patch(frame)


def _colour_bar(
    figure: Figure, axes: Axes, scale: Normalize, value_label: str, values: Collection[float]
) -> None:
    """Below the map, with the lowest and the highest value: the cells have all others."""
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(
        ScalarMappable(scale, _COLOURS), ax=axes, location="bottom", aspect=40, pad=0.04
    )
    ends = sorted({min(values), max(values)})
    bar.set_ticks(ends, labels=[f"{value:.2f}" for value in ends])
    bar.set_label(value_label, color=INK)
    bar.outline.set_visible(False)
