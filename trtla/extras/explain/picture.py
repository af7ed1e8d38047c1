"""A step as a picture: the run in a row, then the text view's lines, with the mask to their right.

Styles become backgrounds and colours; letters have equal widths, as in a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from rich.cells import cell_len

from trtla.charts import BASE, COLOURS, INK, theme
from trtla.errors import UsageError
from trtla.extras.explain.record import RecordedRun, RecordedStep
from trtla.extras.explain.step_outcome import outcome_of
from trtla.extras.explain.text_view import HIDDEN, StepView, mask_lines
from trtla.extras.explain.words import WIDTH, Style, Words, headline, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_FED = 400  # tokens: a larger mask's pixels would not fit into memory
_WIDEST = 2 * _MOST_FED  # columns of a mask
_MOST_STEPS = 1000  # in the row of the run
_SIZE, _COLUMN, _ROW = 9.0, 9.0 * 0.602, 13.0  # points; 0.602: DejaVu Sans Mono
_MARGIN, _BETWEEN = 18.0, 4 * _COLUMN

_STYLES: tuple[Style, ...] = get_args(Style)
_BEGIN, _END = "\ue000", "\ue001"  # escaped in texts of tokens
_RUN = re.compile(f"(?:{_BEGIN}(.))?([^{_BEGIN}{_END}]*){_END}?")  # style, if any, and text
_SOLID = re.compile("[█▓▒]+")
_INKS: dict[Style, str] = {"dim": BASE, "input": "white"}


def _tint(colour: str, share: float) -> str:
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * share):02x}" for part in parts)


_SOLIDS: dict[Style, str] = {
    "dim": _tint(BASE, 0.5), "input": INK, "window": COLOURS[0], "candidate": COLOURS[1],
}  # fmt: skip
_GROUNDS: dict[Style, str] = {
    "input": INK,
    "window": _tint(COLOURS[0], 0.25),
    "candidate": _tint(COLOURS[1], 0.25),
    "accepted": _tint(COLOURS[2], 0.35),
    "rejected": _tint(COLOURS[5], 0.25),
}


_Span = tuple[int, str, Style]
"""A text of one style, with its first column in the line."""


def step_picture(run: RecordedRun, step: RecordedStep, words: Words) -> Figure:
    """Draw a step."""
    if step.draft.size > _MOST_FED:
        raise UsageError(
            f"step {step.number} fed {step.draft.size} tokens, and a mask of more than {_MOST_FED} "
            "is not drawn",
            "use a smaller --lookahead, or --json",
        )
    outcome = outcome_of(run, step)
    title = [_painted(headline(outcome), "bold"), *_run_row(run, step), ""]
    view = StepView(outcome, words, _painted)
    left = [*view.draft(), "", *view.ending()]
    right = list(mask_lines(outcome, words, _painted, _WIDEST)) if step.number else []
    return _figure(f"step {step.number}", title, left, right)


def _painted(text: str, style: Style) -> str:
    return f"{_BEGIN}{_STYLES.index(style)}{text}{_END}"


def _run_row(run: RecordedRun, chosen: RecordedStep) -> Iterator[str]:
    """Yield the whole run: the number of tokens of each step, marked if drafts were accepted."""
    yield summary(run)
    yield "tokens of each step, this one black, green where drafts were accepted:"
    line, width = "", 0
    for step in run.steps[:_MOST_STEPS]:
        count = f" {len(step.committed)} "
        accepted = bool(outcome_of(run, step).accepted)
        style: Style = "input" if step is chosen else "accepted" if accepted else "plain"
        if width + len(count) > WIDTH:
            yield line
            line, width = "", 0
        line, width = line + _painted(count, style), width + len(count)
    yield line + ("..." if len(run.steps) > _MOST_STEPS else "")


def _spans(line: str) -> Iterator[_Span]:
    column = 0
    for style, text in _RUN.findall(line):
        yield column, text, _STYLES[int(style)] if style else "plain"
        column += cell_len(text)


def _width(lines: Sequence[str]) -> float:
    ends = [column + cell_len(text) for line in lines for column, text, _ in _spans(line)]
    return max(ends, default=0) * _COLUMN


def _figure(name: str, title: list[str], left: list[str], right: list[str]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    middle = _MARGIN + _width(left) + _BETWEEN
    width = max(_MARGIN + _width(title), middle + _width(right)) + _MARGIN
    height = 2 * _MARGIN + (len(title) + max(len(left), len(right))) * _ROW
    with theme():
        figure = Figure(figsize=(width / 72.0, height / 72.0))
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(0.0, width)
        axes.set_ylim(height, 0.0)
        axes.set_axis_off()
        top = _MARGIN + len(title) * _ROW
        for x, y, lines in ((_MARGIN, _MARGIN, title), (_MARGIN, top, left), (middle, top, right)):
            for number, line in enumerate(lines):
                for span in _spans(line):
                    _draw(axes, span, x, y + number * _ROW)
        figure.set_gid(name)
    return figure


def _draw(axes: Axes, span: _Span, x: float, y: float) -> None:
    column, text, style = span
    left, width = x + column * _COLUMN, cell_len(text) * _COLUMN
    if not text.strip(HIDDEN):
        return
    solid = _SOLID.fullmatch(text)
    if ground := (_SOLIDS if solid else _GROUNDS).get(style, ""):
        _box(axes, left, y, width, ground)
    if solid or not text.strip(" "):
        return
    spaces = len(text) - len(text.lstrip(" "))
    axes.text(
        left + spaces * _COLUMN,
        y + _ROW / 2,
        text.strip(" ").replace(" ", "\N{NO-BREAK SPACE}"),  # SVG makes one of several others
        parse_math=False,
        fontsize=_SIZE,
        color=_INKS.get(style, INK),
        fontweight="bold" if style in ("bold", "input") else "normal",
        fontfamily=["DejaVu Sans Mono", "monospace"],
        verticalalignment="center_baseline",
    )


def _box(axes: Axes, x: float, y: float, width: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    corner, height = (x + 0.5, y + 0.5), _ROW - 1.0
    axes.add_patch(Rectangle(corner, width - 1.0, height, facecolor=colour, linewidth=0))
