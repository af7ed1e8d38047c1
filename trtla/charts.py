"""Colours of pictures, and figures of matplotlib as SVG and PNG files.

matplotlib, of the extra `report`, is imported when a figure is drawn.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.errors import TrtlaError, UsageError, install_hint
from trtla.files import write_whole, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INK = "#1c2127"
BASE = "#8c939d"
"""The colour of less important parts."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's palette, less its yellow and black, which vanish on white and on black."""

_SETTINGS: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trtla"}


def theme() -> AbstractContextManager[None]:
    """The settings of matplotlib under which figures are drawn and written."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise TrtlaError("pictures need the package matplotlib", install_hint("report")) from None
    return mpl.rc_context(_SETTINGS)  # type: ignore[arg-type]


SUFFIXES = (".svg", ".png")
_DPI = 160
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def check_path(path: Path) -> None:
    """Refuse a name that no picture can be written to, before drawing."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} cannot be a picture", "end it with .svg or .png")


def save(figure: Figure, path: Path) -> None:
    """Write a figure on white, whole or not at all."""
    check_path(path)
    with written(path, "give another path"):
        is_svg = path.suffix.lower() == ".svg"
        write_whole(path, _svg(figure) if is_svg else _png(figure))


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with theme():
        figure.savefig(out, format="svg", facecolor="white", metadata=_NO_METADATA)
    return re.sub(r"<metadata>.*?</metadata>\s*", "", out.getvalue(), flags=re.DOTALL)


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    with theme():
        figure.savefig(out, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
    return out.getvalue()
