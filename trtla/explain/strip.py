"""A whole run as a strip: a row a step, what it accepted and what the target added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len

from trtla.explain.cells import ELLIPSIS, Paint
from trtla.explain.record import RecordedRun
from trtla.explain.step_story import Reason, tell
from trtla.explain.words import SHORT, Words

_WIDTH = 100
_REASON = 17


@dataclass(frozen=True, slots=True)
class StripRow:
    """One step of a run."""

    number: int
    fed: int
    accepted: tuple[int, ...]
    added: int | None
    reason: Reason


def strip_rows(run: RecordedRun) -> list[StripRow]:
    """A row a step, the prompt pass first."""
    rows = []
    for step in run.steps:
        story = tell(run, step)
        fed = step.draft.size if step.number else len(run.completion.input_ids)
        rows.append(StripRow(step.number, fed, story.accepted, story.added, story.reason))
    return rows


def summary(run: RecordedRun) -> str:
    """The run in a line."""
    stats, tokens = run.completion.stats, len(run.completion.output_ids)
    triple = run.completion.lookahead
    how = f"W,N,G = {triple}" if "lookahead" in stats.drafter.split(",") else stats.drafter
    return (
        f"{stats.steps} steps after the prompt pass, {tokens} tokens, "
        f"S = {stats.tokens_per_step:.2f} tokens a step ({how})"
    )


def strip_lines(run: RecordedRun, words: Words, paint: Paint) -> Iterator[str]:
    """The strip for a terminal; accepted tokens in brackets, so that it needs no colours."""
    yield paint(summary(run), "bold")
    yield "Accepted tokens are in [brackets], the others are the target's own."
    yield f"step   fed  {'tokens'.ljust(_WIDTH - 12 - _REASON)} ended by"
    for row in strip_rows(run):
        tokens = [(f"[{words.cell(token)}]", True) for token in row.accepted]
        if row.added is not None:
            tokens.append((words.cell(row.added), False))
        line = _fitted(tokens, _WIDTH - 12 - _REASON, paint)
        yield f"{row.number:4} {row.fed:5}  {line} {SHORT[row.reason]}"


def _fitted(tokens: list[tuple[str, bool]], width: int, paint: Paint) -> str:
    """As many tokens as fit, filled up to the width."""
    line, used = "", 0
    for index, (text, accepted) in enumerate(tokens):
        room = width - used - (2 if index < len(tokens) - 1 else 0)
        if cell_len(text) > room:
            line, used = line + ELLIPSIS, used + 1
            break
        line += (paint(text, "accepted") if accepted else text) + " "
        used += cell_len(text) + 1
    return line + " " * (width - used)
