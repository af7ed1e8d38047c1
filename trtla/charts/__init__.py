"""Charts of plain numbers as matplotlib figures, and as files or inline SVG.

matplotlib is imported when a chart is drawn, not before.
"""

from trtla.charts.curve import cost_curve
from trtla.charts.grid import heat_map
from trtla.charts.groups import bars
from trtla.charts.theme import check_path, save, svg_text

__all__ = ["bars", "check_path", "cost_curve", "heat_map", "save", "svg_text"]
