"""The nodes of a step's draft: the role of each, as the paper draws them, and the outcome.

They follow from a draft's parents and the window's shape; words.py describes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Literal, get_args

from trtla.extras.explain.record import RecordedRun, RecordedStep, WindowCells
from trtla.runtime.draft import Draft, depths
from trtla.runtime.drafters.lookahead import DraftTree
from trtla.runtime.request import FinishReason

Part = Literal["input", "filler", "window", "candidate"]
Cell = tuple[int, int]


@dataclass(slots=True)
class Role:
    """The role of one node of a draft; a node may have several."""

    is_input: bool
    cells: list[Cell] = field(default_factory=list)
    """Window cells (level, column)."""
    filler: int | None = None
    """The index of a filler token before column 0."""
    candidates: list[Cell] = field(default_factory=list)
    """(candidate, index in it), both from 1 on."""

    @property
    def part(self) -> Part:
        """The part that it is drawn as: a node of the window stays one if candidates share it."""
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
        names += [f"C{candidate}.{index}" for candidate, index in self.candidates]
        return names[0] + "+" * (len(names) > 1)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Adjacent nodes [start, end): level L1, candidate C2, fillers, the input."""

    name: str
    part: Part
    start: int
    end: int


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Return the candidates: each branch's nodes below the input, down to its last node."""
    inner = set(draft.parents[draft.first_candidate - 1 :])
    leaves = [node for node in range(draft.first_candidate, draft.size) if node not in inner]
    return sorted(draft.path(leaf) for leaf in leaves)


def roles(step: RecordedStep) -> list[Role]:
    """Return the role of every fed node, the input first."""
    parts = [Role(is_input=not node) for node in range(step.draft.size)]
    if step.window is not None:
        _place_window(parts, step.draft, step.window)
    for number, path in enumerate(paths(step.draft), 1):
        for index, node in enumerate(path, 1):
            parts[node].candidates.append((number, index))
    return parts


def _place_window(parts: list[Role], draft: Draft, window: WindowCells) -> None:
    if draft.first_candidate == 1:
        return
    nodes: Sequence[int] = range(1, draft.first_candidate)
    if len(nodes) < len(window.tokens):  # tokens that share nodes
        nodes = DraftTree().merge_tree(window.tokens, window.parents)[1:]
    fillers, width = len(window.fillers), len(window.levels[0])
    for index, node in enumerate(nodes):
        if index < fillers:
            parts[node].filler = index
        else:
            level, column = divmod(index - fillers + window.full, width)
            parts[node].cells.append((level, column))


def blocks(step: RecordedStep) -> list[Stretch]:
    """Group the fed nodes into stretches of one level or one candidate, in order."""
    stretches: list[Stretch] = []
    for key, group in groupby(roles(step), lambda role: (_block_name(role), role.part)):
        start = stretches[-1].end if stretches else 0
        stretches.append(Stretch(*key, start, start + len(list(group))))
    return stretches


def _block_name(role: Role) -> str:
    if role.part == "window":
        return f"L{role.cells[0][0]}"
    if role.part == "candidate":
        return f"C{role.candidates[0][0]}" if role.candidates else "dr"
    return role.part[:2]


def positions(step: RecordedStep, start: int) -> list[int]:
    """Return the absolute position of every fed node, the input at `start`."""
    return [start + depth for depth in depths(step.draft.parents)]


Ending = Literal["end_id", "stop_words", "length"]
Reason = Literal["prefill", "nothing_drafted", "mismatch", "whole_candidate"] | Ending
Source = Literal["prompt", "output", "window"]
Fate = Literal["accepted", "rejected", "not reached"]
"""`not reached` is for nodes below a rejected one, or behind the text's end."""

_ENDS: dict[FinishReason, Ending] = {name: name for name in get_args(Ending)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A branch of the draft that could have been accepted."""

    tokens: tuple[int, ...]
    matched: int
    """Leading tokens that equal the target's draws, as far as the text went."""
    sources: tuple[Source, ...]
    """Earlier places of input and candidate; empty for other drafters' tokens."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node that the candidate tree chose for a step."""

    depth: int
    token: int
    source: str
    """The proposer, from `settings.drafting.PROPOSERS`."""
    chance: float
    """The estimated chance of acceptance."""
    fate: Fate


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step."""

    run: RecordedRun
    step: RecordedStep
    reason: Reason
    accepted_nodes: tuple[int, ...]
    accepted: tuple[int, ...]
    """Drafted tokens that became output."""
    added: int | None
    """The token that the target drew after them; None if the text ended within a draft."""
    drafted: tuple[int, ...]
    """The drafted tokens in its position, each once; empty if no draft reached it."""
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and output up to the step's input token, which is the last one."""
        return self.run.text_before(self.step)

    @property
    def position(self) -> int:
        return self.run.position(self.step)


def outcome_of(run: RecordedRun, step: RecordedStep) -> Outcome:
    """Evaluate one step of a run."""
    draft = step.draft
    frontier, nodes = _follow(draft, step.committed)
    ended = _ENDS.get(run.completion.finish_reason) if step is run.steps[-1] else None
    added = step.committed[-1] if len(nodes) < len(step.committed) else None
    below = _children(draft, frontier) if added is not None else []
    drafted = tuple(dict.fromkeys(draft.tokens[node - 1] for node in below))
    return Outcome(
        run,
        step,
        ended or _natural_reason(step, drafted),
        nodes,
        tuple(draft.tokens[node - 1] for node in nodes),
        added,
        drafted,
        tuple(_candidate(run, step, path) for path in paths(draft)),
    )


def _natural_reason(step: RecordedStep, drafted: tuple[int, ...]) -> Reason:
    if not step.number:
        return "prefill"
    if not step.draft.candidates:
        return "nothing_drafted"
    return "mismatch" if drafted else "whole_candidate"


def _follow(draft: Draft, committed: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """Return the nodes with the whole accepted path's last token, and one path to them."""
    frontier = [0]
    for token in committed:
        below = _children(draft, frontier)
        matching = [node for node in below if draft.tokens[node - 1] == token]
        if not matching:
            break
        frontier = matching
    return frontier, draft.path(frontier[0])


def _children(draft: Draft, frontier: Sequence[int]) -> list[int]:
    return [node for node in draft.candidates if draft.parents[node - 1] in frontier]


def _candidate(run: RecordedRun, step: RecordedStep, path: tuple[int, ...]) -> Candidate:
    tokens = tuple(step.draft.tokens[node - 1] for node in path)
    pairs = zip(tokens, step.committed, strict=False)
    matched = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return Candidate(tokens, matched, _sources(run, step, tokens))


def _sources(run: RecordedRun, step: RecordedStep, tokens: tuple[int, ...]) -> tuple[Source, ...]:
    if step.window is None:
        return ()
    text, gram = run.text_before(step), (run.text_before(step)[-1], *tokens)
    prompt, sources = len(run.completion.input_ids), list[Source]()
    ends = [end for end in range(len(gram), len(text) + 1) if text[end - len(gram) : end] == gram]
    if any(end <= prompt for end in ends):
        sources.append("prompt")
    if any(end > prompt for end in ends):
        sources.append("output")
    if any(gram in earlier.harvest for earlier in run.steps[: step.number]):
        sources.append("window")
    return tuple(sources)


def fates(outcome: Outcome) -> list[Fate]:
    """Return the fate of each node of the draft."""
    accepted, step = outcome.accepted_nodes, outcome.step
    judged = (0, *accepted)[: len(step.committed)]  # the target drew a token after these
    return [
        "accepted" if node in accepted else "rejected" if parent in judged else "not reached"
        for node, parent in enumerate(step.draft.parents, 1)
    ]


def tree_nodes(outcome: Outcome) -> list[TreeNode]:
    """Return the nodes that the tree chose, parents before children, the likeliest first.

    Cells of a fed window are included if they were accepted.
    """
    draft = outcome.step.draft
    if not draft.sources:
        return []
    names = draft.proposers(range(1, draft.size))
    columns = (depths(draft.parents)[1:], draft.tokens, names, draft.values, fates(outcome))
    nodes = [TreeNode(*cells) for cells in zip(*columns, strict=True)]
    shown = (nodes[node - 1] for node in _below(draft, 0))
    return [node for node in shown if node.chance > 0 or node.fate == "accepted"]


def _below(draft: Draft, at: int) -> Iterator[int]:
    children = [node for node, parent in enumerate(draft.parents, 1) if parent == at]
    for node in sorted(children, key=lambda node: -draft.values[node - 1]):
        yield node
        yield from _below(draft, node)


def busiest(run: RecordedRun) -> RecordedStep:
    """Return the step that accepted the most tokens; a tie goes to the first with a full window."""

    def interest(step: RecordedStep) -> tuple[int, bool]:
        full = step.window is not None and step.window.full
        return len(outcome_of(run, step).accepted), full

    return max(run.steps[1:] or run.steps, key=interest)
