"""Charts as SVG and PNG; they need the package matplotlib, of the extra `report`."""

from __future__ import annotations

from trtla.charts.groups import bars
from trtla.charts.theme import check_path, save, svg_text

__all__ = ["bars", "check_path", "save", "svg_text"]
