"""How all charts look, and how they become SVG and PNG files.

Everything that is not data is drawn in one ink, so that a page can put its own text colour there.
"""

from __future__ import annotations

import hashlib
import io
import re
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


SUFFIXES = (".svg", ".png")
_DPI = 160
_FONT = "'DejaVu Sans'"
_FONTS = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_LINES = 'stroke-linejoin="round" stroke-linecap="butt"'
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def check_path(path: Path) -> None:
    """Refuse a name that no chart can be written to, before it is drawn.

    Raises:
        UsageError: the suffix is neither .svg nor .png.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} cannot be a chart", "end it with .svg or .png")


def save(figure: Figure, path: Path) -> None:
    """Write a figure on white, whole or not at all.

    Raises:
        UsageError: the suffix is neither .svg nor .png, or the file cannot be written.
    """
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
