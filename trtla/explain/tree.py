"""The candidate tree of a step, printed or drawn: a row a node with its source, chance and fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtla.charts.theme import INK
from trtla.explain.canvas import ACCEPTED, FAINT, REJECTED, Canvas, tint
from trtla.explain.record import RecordedStep
from trtla.explain.step_outcome import Fate, Outcome, TreeNode, tree_nodes
from trtla.explain.words import CHECK, CROSS, Paint, Style, Words, clip, fit

BOTH = "both: a text and a row of logits propose the token"

_TOKENS, _SOURCE, _NARROWEST = 44, 10, 4  # columns
_LAST, _NEXT, _PASS, _NOTHING = "└ ", "├ ", "│ ", "  "
_MARKS: dict[Fate, str] = {"accepted": CHECK, "rejected": CROSS, "not reached": ""}
_STYLES: dict[Fate, Style] = {"accepted": "accepted", "rejected": "rejected", "not reached": "dim"}

_ROW, _INDENT, _WIDTH, _LINE = 20.0, 14.0, 72.0, 0.8  # points
_COLOURS: dict[Fate, str] = {"accepted": ACCEPTED, "rejected": REJECTED, "not reached": FAINT}


def tree_lines(step: RecordedStep, outcome: Outcome, words: Words, paint: Paint) -> Iterator[str]:
    """The tree for a terminal; nothing where no node was fed."""
    nodes = tree_nodes(step, outcome.accepted_nodes)
    if nodes:
        yield f"  {fit('token', _TOKENS)}{fit('source', _SOURCE)}chance  fate"
    for place, one in enumerate(nodes):
        branch = _branch(nodes, place)
        token = clip(words.cell(one.token), max(_NARROWEST, _TOKENS - 2 - len(branch)))
        fate = paint(f"{one.fate} {_MARKS[one.fate]}".rstrip(), _STYLES[one.fate])
        figures = f"{fit(one.source, _SOURCE)}{one.chance:6.2f}"
        yield f"  {fit(branch + token, _TOKENS)}{figures}  {fate}"
    if any(one.source == "both" for one in nodes):
        yield f"  {BOTH}"


def _branch(nodes: Sequence[TreeNode], place: int) -> str:
    """The lines before a node: on each level, whether a further node follows below the same one."""
    line, own = "", nodes[place].depth
    for depth in range(1, own + 1):
        after = next((one.depth for one in nodes[place + 1 :] if one.depth <= depth), 0)
        here, above = (_NEXT, _PASS) if after == depth else (_LAST, _NOTHING)
        line += here if depth == own else above
    return line


def draw_tree(
    canvas: Canvas, x: float, y: float, step: RecordedStep, outcome: Outcome, words: Words
) -> float:
    """Draw the tree from a point on; where it ends below."""
    nodes = tree_nodes(step, outcome.accepted_nodes)
    right = x + max((one.depth for one in nodes), default=0) * _INDENT + _WIDTH
    ends: dict[int, float] = {}
    """By depth, where the last box ends below."""
    for one in nodes:
        left, middle = x + (one.depth - 1) * _INDENT, y + _ROW / 2
        if one.depth > 1:
            from_x, from_y = left - _INDENT / 2, ends[one.depth - 1]
            canvas.box((from_x, from_y, _LINE, middle - from_y), FAINT)
            canvas.box((from_x, middle, _INDENT / 2, _LINE), FAINT)
        ends[one.depth] = y + _ROW - 1
        _draw_node(canvas, one, (left, y + 1, _WIDTH, _ROW - 2), right, words)
        y += _ROW
    return y


def _draw_node(
    canvas: Canvas, one: TreeNode, box: tuple[float, float, float, float], x: float, words: Words
) -> None:
    colour = _COLOURS[one.fate]
    canvas.box(box, tint(colour, 0.35 if one.fate == "accepted" else 0.06), colour)
    canvas.token(box, words.cell(one.token), 8.5, colour=INK)
    _, y, _, height = box
    canvas.token((x, y, 11, height), _MARKS[one.fate], 9, colour=colour, bold=True)
    text = f"{one.chance:.2f}  {one.source}, {one.fate}"
    canvas.prose(x + 16, y + height / 2, text, 8, colour=FAINT)
