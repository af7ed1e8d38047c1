"""The role of each node in a step's draft, for the attention mask as the paper draws it.

From a draft's parents and the window's shape alone; the tokens' texts are in trtla.explain.words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from trtla.explain.record import RecordedStep, WindowCells
from trtla.runtime.draft import Draft, depths
from trtla.runtime.drafters.lookahead import DraftTree

Part = Literal["input", "filler", "window", "candidate"]
Cell = tuple[int, int]


@dataclass(slots=True)
class Role:
    """What one node of a draft is; a node that several share is all of it."""

    is_input: bool
    cells: list[Cell] = field(default_factory=list)
    """Window cells (level, column)."""
    filler: int | None = None
    """Which token of those before column 0, from 0 on."""
    candidates: list[Cell] = field(default_factory=list)
    """(candidate, place in it), both from 1 on."""

    @property
    def part(self) -> Part:
        """What it is drawn as: a node of the window stays one where candidates share it."""
        if self.is_input:
            return "input"
        if self.cells:
            return "window"
        return "candidate" if self.filler is None else "filler"

    @property
    def label(self) -> str:
        """`L1.2` is level 1, column 2, `C1.2` the second token of candidate 1, `F1` a filler."""
        if self.is_input:
            return "input"
        names = [f"L{level}.{column}" for level, column in self.cells]
        if self.filler is not None:
            names.append(f"F{self.filler + 1}")
        names += [f"C{candidate}.{place}" for candidate, place in self.candidates]
        return names[0] + "+" * (len(names) > 1)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Nodes [start, end) that stand together: level L1, candidate C2, fillers, the input."""

    name: str
    part: Part
    start: int
    end: int


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """The candidates: each branch's nodes below the input, down to a node without further ones."""
    inner = set(draft.parents[draft.first_candidate - 1 :])
    leaves = [node for node in range(draft.first_candidate, draft.size) if node not in inner]
    return sorted(draft.path(leaf) for leaf in leaves)


def roles(step: RecordedStep) -> list[Role]:
    """What every fed node is, the input first."""
    parts = [Role(is_input=not node) for node in range(step.draft.size)]
    if step.window is not None:
        _place_window(parts, step.draft, step.window)
    for number, path in enumerate(paths(step.draft), 1):
        for place, node in enumerate(path, 1):
            parts[node].candidates.append((number, place))
    return parts


def _place_window(parts: list[Role], draft: Draft, window: WindowCells) -> None:
    if draft.first_candidate == 1:
        return
    fillers, width = len(window.fillers), len(window.levels[0])
    for index, node in enumerate(_window_nodes(draft, window)):
        if index < fillers:
            parts[node].filler = index
        else:
            level, column = divmod(index - fillers + window.full, width)
            parts[node].cells.append((level, column))


def _window_nodes(draft: Draft, window: WindowCells) -> list[int]:
    """The draft's node of each of the window's tokens, which may share nodes."""
    if draft.first_candidate - 1 == len(window.tokens):
        return list(range(1, draft.first_candidate))
    return DraftTree().merge_tree(window.tokens, window.parents)[1:]


def blocks(step: RecordedStep) -> list[Stretch]:
    """The fed nodes in stretches of one level or one candidate, in order."""
    found: list[Stretch] = []
    for key, group in groupby(roles(step), lambda role: (_block_name(role), role.part)):
        start = found[-1].end if found else 0
        found.append(Stretch(*key, start, start + len(list(group))))
    return found


def _block_name(role: Role) -> str:
    if role.part == "window":
        return f"L{role.cells[0][0]}"
    if role.part == "candidate":
        return f"C{role.candidates[0][0]}" if role.candidates else "dr"
    return role.part[:2]


def positions(step: RecordedStep, start: int) -> list[int]:
    """Absolute position of every fed node, the input at `start`."""
    return [start + depth for depth in depths(step.draft.parents)]
