"""Bar charts as SVG and PNG. matplotlib, of the extra `report`, is imported when one is drawn.

Everything that is not data is drawn in one ink, so that a page can put its own text colour there.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.errors import TrtlaError, UsageError
from trtla.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK = "#1c2127"
BASE = "#8c939d"
"""The colour of the baseline."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's palette, less its yellow and black, which vanish on white and on black."""
MARKERS = ("o", "s", "^", "D", "v", "P")

_SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "trtla",
    "path.simplify": True,
}


def theme() -> AbstractContextManager[None]:
    """The settings of matplotlib under which charts are drawn and written."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise TrtlaError(
            "charts need the package matplotlib", "pip install 'trtla[report]'"
        ) from None
    return mpl.rc_context(_SETTINGS)  # type: ignore[arg-type]


def canvas(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """An empty chart of so many inches with its title; call it inside `theme()`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def settle(figure: Figure) -> Figure:
    """Fix the places of everything, which each further drawing would move by a hair."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


SUFFIXES = (".svg", ".png")
_DPI = 160
_FONT = "'DejaVu Sans'"
_FONTS = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_LINES = 'stroke-linejoin="round" stroke-linecap="butt"'
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def check_path(path: Path) -> None:
    """Refuse a name that no chart can be written to, before it is drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} cannot be a chart", "end it with .svg or .png")


def save(figure: Figure, path: Path) -> None:
    """Write a figure on white, whole or not at all."""
    check_path(path)
    try:
        is_svg = path.suffix.lower() == ".svg"
        write_whole(path, _svg(figure, background="white") if is_svg else _png(figure))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}", "give another path"
        ) from None


def svg_text(figure: Figure) -> str:
    """A figure as an <svg> element for a page, in the page's text colour on the page's ground."""
    text = _svg(figure, background="none")
    text = _own_ids(text[text.index("<svg") :])
    text = re.sub(r' xmlns(:\w+)?="[^"]+"', "", text)  # needless in HTML
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # it would style the page
    text = text.replace(INK, "currentColor").replace(_FONT, _FONTS)
    label = escape(_title(figure), quote=True)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" {_LINES} ', 1)


def _svg(figure: Figure, background: str) -> str:
    out = io.StringIO()
    with theme():
        figure.savefig(out, format="svg", facecolor=background, metadata=_NO_METADATA)
    return re.sub(r"<metadata>.*?</metadata>\s*", "", out.getvalue(), flags=re.DOTALL)


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    with theme():
        figure.savefig(out, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
    return out.getvalue()


def _own_ids(text: str) -> str:
    """Ids that nothing refers to go, the others become the figure's own: a page holds several."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]

    def renamed(match: re.Match[str]) -> str:
        return f' id="{mark}-{match[1]}"' if match[1] in used else ""

    text = re.sub(r' id="([^"]+)"', renamed, text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{mark}-", text)


def _title(figure: Figure) -> str:
    """The figure's title, else that of its first axes that has one."""
    found = [figure.get_suptitle()]
    found += [axes.get_title(loc) for axes in figure.axes for loc in ("left", "center")]
    return next((title for title in found if title), "chart")


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
