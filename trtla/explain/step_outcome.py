"""What came of a step: which candidates matched, what was accepted, and why it ended there.

Plain integers; words for them are in trtla.explain.words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from trtla.explain.mask import paths
from trtla.explain.record import RecordedRun, RecordedStep
from trtla.runtime.draft import Draft, depths
from trtla.runtime.request import FinishReason

Reason = Literal[
    "prompt_pass",
    "nothing_drafted",
    "mismatch",
    "whole_candidate",
    "end_id",
    "stop_words",
    "length",
]
Source = Literal["prompt", "output", "window"]
Fate = Literal["accepted", "rejected", "not reached"]
"""The last: it stood below a rejected node, or behind the text's end."""

_ENDS: dict[FinishReason, Reason] = {
    "end_id": "end_id",
    "stop_words": "stop_words",
    "length": "length",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One branch of the draft that could have been accepted."""

    tokens: tuple[int, ...]
    matched: int
    """Leading tokens that equal what the target drew, as far as the text went."""
    sources: tuple[Source, ...]
    """Where the n-gram of input and candidate had been seen; nothing for other drafters' tokens."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node that the candidate tree chose for a step."""

    depth: int
    token: int
    source: str
    """What proposed it, of `settings.drafting.PROPOSERS`."""
    chance: float
    """Of being accepted, as the tree saw it."""
    fate: Fate


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a step."""

    run: RecordedRun
    step: RecordedStep
    reason: Reason
    accepted_nodes: tuple[int, ...]
    accepted: tuple[int, ...]
    """Drafted tokens that became output."""
    added: int | None
    """The token that the target drew after them; None where the text ended within a draft."""
    drafted: tuple[int, ...]
    """What was drafted in its place, each token once; nothing where no draft reached so far."""
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and output up to the step's input token, which is the last one."""
        return self.run.text_before(self.step)

    @property
    def position(self) -> int:
        """The absolute position of the input token."""
        return self.run.position(self.step)


def outcome_of(run: RecordedRun, step: RecordedStep) -> Outcome:
    """The outcome of one step of a run."""
    frontier, nodes = _follow(step.draft, step.committed)
    ended = _ENDS.get(run.completion.finish_reason) if step is run.steps[-1] else None
    added = step.committed[-1] if len(nodes) < len(step.committed) else None
    drafted = _children(step.draft, frontier) if added is not None else ()
    return Outcome(
        run,
        step,
        ended or _natural_reason(step, drafted),
        nodes,
        tuple(step.draft.tokens[node - 1] for node in nodes),
        added,
        drafted,
        tuple(_candidate(run, step, path) for path in paths(step.draft)),
    )


def _natural_reason(step: RecordedStep, drafted: tuple[int, ...]) -> Reason:
    if not step.number:
        return "prompt_pass"
    if not step.draft.candidates:
        return "nothing_drafted"
    return "mismatch" if drafted else "whole_candidate"


def _follow(draft: Draft, committed: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """The nodes that carry the whole accepted path's last token, and one path to them."""
    frontier = [0]
    for token in committed:
        nodes = [node for node in draft.candidates if draft.parents[node - 1] in frontier]
        matching = [node for node in nodes if draft.tokens[node - 1] == token]
        if not matching:
            break
        frontier = matching
    return frontier, draft.path(frontier[0])


def _children(draft: Draft, frontier: Sequence[int]) -> tuple[int, ...]:
    tokens = [
        draft.tokens[node - 1] for node in draft.candidates if draft.parents[node - 1] in frontier
    ]
    return tuple(dict.fromkeys(tokens))


def _candidate(run: RecordedRun, step: RecordedStep, path: tuple[int, ...]) -> Candidate:
    tokens = tuple(step.draft.tokens[node - 1] for node in path)
    pairs = zip(tokens, step.committed, strict=False)
    matched = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return Candidate(tokens, matched, _sources(run, step, tokens))


def _sources(run: RecordedRun, step: RecordedStep, tokens: tuple[int, ...]) -> tuple[Source, ...]:
    """Where the pool had the candidate from."""
    if step.window is None:
        return ()
    text, gram = run.text_before(step), (run.text_before(step)[-1], *tokens)
    prompt, found = len(run.completion.input_ids), list[Source]()
    ends = [end for end in range(len(gram), len(text) + 1) if text[end - len(gram) : end] == gram]
    if any(end <= prompt for end in ends):
        found.append("prompt")
    if any(end > prompt for end in ends):
        found.append("output")
    if any(gram in earlier.harvest for earlier in run.steps[: step.number]):
        found.append("window")
    return tuple(found)


def fates(outcome: Outcome) -> list[Fate]:
    """What became of each node of the draft."""
    accepted, step = outcome.accepted_nodes, outcome.step
    judged = (0, *accepted)[: len(step.committed)]  # the target drew a token after these
    return [
        "accepted" if node in accepted else "rejected" if parent in judged else "not reached"
        for node, parent in enumerate(step.draft.parents, 1)
    ]


def tree_nodes(outcome: Outcome) -> list[TreeNode]:
    """The nodes that the candidate tree chose, each before those below it, the likeliest first.

    Cells of a fed window are among them where they were accepted.
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
    """The step that accepted the most tokens; of several the first with a full window."""
    return max(run.steps[1:] or run.steps, key=lambda step: _interest(run, step))


def _interest(run: RecordedRun, step: RecordedStep) -> tuple[int, bool]:
    full = step.window is not None and step.window.full
    return len(outcome_of(run, step).accepted), full
