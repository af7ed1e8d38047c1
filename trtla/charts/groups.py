"""Grouped bar charts: a value for each series in each group, horizontal to fit long names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtla.charts.theme import BASE, COLOURS, INK, canvas, settle, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.26  # inches a bar, with the room between bars
_BETWEEN = 0.7  # bars' room between groups
_LEGEND_LETTERS = 84  # in the chart's width


def bars(
    groups: Mapping[str, Mapping[str, float]],
    *,
    value_label: str,
    title: str,
    base: float | None = None,
) -> Figure:
    """Draw {group: {series: value}}, first group on top; a series may be missing in a group.

    Args:
        base: the value that others are compared with, a line across all groups.

    Raises:
        ValueError: there are no values.
        TrtlaError: matplotlib is not installed.
    """
    series = list(dict.fromkeys(name for members in groups.values() for name in members))
    if not series:
        raise ValueError("bars need values")
    drawn = sum(len(members) for members in groups.values())
    with theme():
        height = 1.5 + _BAR * (drawn + _BETWEEN * len(groups)) + 0.2 * (len(series) // 3)
        figure, axes = canvas(6.4, max(height, 2.2), title)
        middles = _draw(axes, groups, series)
        axes.set_yticks(middles, list(groups))
        last = [*groups.values()][-1]
        axes.set_ylim(max(middles) + (len(last) - 1) / 2 + 0.9, -0.9)
        axes.margins(x=0.1)
        _label(axes, value_label, base)
        if len(series) > 1:
            _legend(figure, axes, series)
        return settle(figure)


def _draw(axes: Axes, groups: Mapping[str, Mapping[str, float]], series: list[str]) -> list[float]:
    """Draw all bars, and return the middle of each group."""
    middles, top = [], 0.0
    for members in groups.values():
        names = [name for name in series if name in members]
        for place, name in enumerate(names):
            _bar(axes, top + place, name, members[name], _colour(series, name))
        middles.append(top + (len(names) - 1) / 2)
        top += len(names) + _BETWEEN
    return middles


def _colour(series: list[str], name: str) -> str:
    """Plain decoding is grey wherever it is one of several."""
    if name == "ar" and len(series) > 1:
        return BASE
    others = [other for other in series if other != "ar" or len(series) == 1]
    return COLOURS[others.index(name) % len(COLOURS)]


def _bar(axes: Axes, y: float, name: str, value: float, colour: str) -> None:
    axes.barh(y, value, height=0.82, color=colour, label=name)
    axes.annotate(
        f"{value:.3g}" if value >= 10 else f"{value:.2f}",
        (value, y),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )


def _label(axes: Axes, value_label: str, base: float | None) -> None:
    axes.grid(visible=True, axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(value_label)
    if base is not None:
        axes.axvline(base, color=INK, alpha=0.6, linewidth=1.1, linestyle=(0, (4, 3)))


def _legend(figure: Figure, axes: Axes, series: list[str]) -> None:
    """As many columns as the longest name leaves room for."""
    columns = max(1, min(len(series), 3, _LEGEND_LETTERS // (6 + max(map(len, series)))))
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=columns)
