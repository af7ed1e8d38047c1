"""How all charts look: fonts, lines and a palette that colour-blind readers can tell apart.

Everything that is not data is drawn in one ink, so that a page can put its own text colour there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from trtla.errors import TrtlaError

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
    """The settings of matplotlib under which charts are drawn and written.

    Raises:
        TrtlaError: matplotlib is not installed.
    """
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
