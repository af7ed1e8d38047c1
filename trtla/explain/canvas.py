"""Boxes and texts at places in points, as a matplotlib figure just large enough, and its colours.

Tokens are set in a font whose letters are all equally wide, so that what fits a box is known before
anything is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from trtla.charts.theme import BASE, COLOURS, INK, theme
from trtla.explain.mask import Part
from trtla.explain.words import clip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]
"""Left, top, width, height."""
Align = Literal["left", "center", "right"]

WINDOW, CANDIDATE, ACCEPTED, REJECTED = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[5]
CACHED, FAINT = BASE, "#6b727b"
PARTS: dict[Part, str] = {
    "input": INK,
    "filler": COLOURS[4],
    "window": WINDOW,
    "candidate": CANDIDATE,
}

_LETTER = 0.602  # width of DejaVu Sans Mono's letters, of the font's size
_PROSE = 0.53  # of DejaVu Sans, on average; for lines that must not run into others
_MARGIN = 18.0
_KEPT_SPACE = "\N{NO-BREAK SPACE}"  # SVG makes one of several other ones


def tint(colour: str, share: float) -> str:
    """A colour mixed with white; 1 is the colour itself."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * share):02x}" for part in parts)


def level_tint(level: int, levels: int) -> str:
    """A window level's ground: the newer, the darker."""
    return tint(WINDOW, 0.14 + 0.3 * (level + 1) / max(1, levels))


def letters(width: float, size: float) -> int:
    """Letters of a token's font that fit."""
    return max(1, int(width / (size * _LETTER)))


def prose_letters(width: float, size: float) -> int:
    """Letters of a sentence that fit."""
    return max(1, int(width / (size * _PROSE)))


def token_width(text_cells: int, size: float) -> float:
    """Points that so many letters of a token take."""
    return text_cells * size * _LETTER


class Canvas:
    """What is to be drawn; y grows downwards."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shapes: list[tuple[Sequence[Box], dict[str, Any]]] = []
        self._words: list[tuple[float, float, str, dict[str, Any]]] = []
        self.right = self.bottom = 0.0
        """How far it reaches."""

    def box(
        self, box: Box, fill: str = "none", edge: str = "none", *, dashed: bool = False
    ) -> None:
        """A rectangle."""
        self.boxes([box], fill, edge, dashed=dashed)

    def boxes(
        self, boxes: Sequence[Box], fill: str, edge: str = "none", *, dashed: bool = False
    ) -> None:
        """Rectangles that look alike, as one shape."""
        if not boxes:
            return
        style = {"facecolor": fill, "edgecolor": edge, "linewidth": 0.0 if edge == "none" else 0.9}
        if dashed:
            style["linestyle"] = (0, (3, 2))
        self._shapes.append((boxes, style))
        for x, y, width, height in boxes:
            self.reach(x + width, y + height)

    def reach(self, right: float, bottom: float) -> None:
        """Make it at least this large."""
        self.right, self.bottom = max(self.right, right), max(self.bottom, bottom)

    def token(
        self,
        box: Box,
        text: str,
        size: float = 9.0,
        *,
        colour: str = INK,
        align: Align = "center",
        bold: bool = False,
    ) -> None:
        """A token in the middle of a box, cut where it is longer than that."""
        x, y, width, height = box
        text = clip(text, letters(width, size))
        place = {"left": x, "center": x + width / 2, "right": x + width}[align]
        look = _look(size, colour, align, bold, mono=True)
        self._words.append((place, y + height / 2, text, look))
        self.reach(x + width, y + height)

    def upright(self, x: float, bottom: float, text: str, size: float, height: float) -> None:
        """A token that runs upwards from a place, at most so high."""
        settings = _look(size, INK, "center", bold=False, mono=True)
        settings.update(rotation=90, verticalalignment="bottom")
        self._words.append((x, bottom, clip(text, letters(height, size)), settings))

    def prose(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 9.0,
        *,
        colour: str = INK,
        align: Align = "left",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """A line of a sentence; y is its middle."""
        shown = re.sub(" {2,}", lambda match: _KEPT_SPACE * len(match[0]), text)
        self._words.append((x, y, shown, _look(size, colour, align, bold, mono=mono)))
        width = len(text) * size * (_LETTER if mono else _PROSE)
        self.reach(x + width if align == "left" else x, y + size)

    def figure(self) -> Figure:
        """Draw it."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        width, height = self.right + _MARGIN, self.bottom + _MARGIN
        with theme():
            figure = Figure(figsize=(width / 72.0, height / 72.0))
            FigureCanvasAgg(figure)
            axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
            axes.set_xlim(0.0, width)
            axes.set_ylim(height, 0.0)
            axes.set_axis_off()
            self._draw(axes)
            figure.set_gid(self._title)
        return figure

    def _draw(self, axes: Axes) -> None:
        from matplotlib.patches import PathPatch

        for boxes, style in self._shapes:
            axes.add_patch(PathPatch(_outline(boxes), **style))
        for x, y, text, look in self._words:
            # Tokens hold dollars, which are no formulas here.
            axes.text(x, y, text, parse_math=False, **look)


def _look(size: float, colour: str, align: Align, bold: bool, *, mono: bool) -> dict[str, Any]:
    return {
        "fontsize": size,
        "color": colour,
        "horizontalalignment": align,
        "verticalalignment": "center_baseline",
        "fontweight": "bold" if bold else "normal",
        "fontfamily": ["DejaVu Sans Mono", "monospace"] if mono else ["DejaVu Sans", "sans-serif"],
    }


def _outline(boxes: Sequence[Box]) -> Any:
    from matplotlib.path import Path

    points: list[tuple[float, float]] = []
    for x, y, width, height in boxes:
        right, bottom = x + width, y + height
        points += [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    return Path(points, codes)
