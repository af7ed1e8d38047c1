"""A decoding in words and as a JSON document: texts of tokens, and why a step ended."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from rich.cells import cell_len, set_cell_size

from trtla.console import counted
from trtla.extras.explain.record import RecordedRun, RecordedStep, WindowCells
from trtla.extras.explain.step_outcome import (
    Outcome,
    Reason,
    Role,
    fates,
    outcome_of,
    positions,
    roles,
)
from trtla.llm.text_stream import Decode
from trtla.results.documents import SCHEMA_VERSION
from trtla.results.run import result

Style = Literal["plain", "bold", "dim", "accepted", "rejected", "input", "window", "candidate"]
Paint = Callable[[str, Style], str]
"""Colours a text by its style, if possible."""

WIDTH = 100
"""Columns of a terminal."""
CHECK, CROSS = "\N{CHECK MARK}", "\N{BALLOT X}"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

SPACE = "\N{MIDDLE DOT}"
_MOST_TOKENS = 4  # of a letter: its bytes in UTF-8
_BROKEN = "\N{REPLACEMENT CHARACTER}"

SHORT: dict[Reason, str] = {
    "prefill": "prefill", "nothing_drafted": "nothing drafted", "mismatch": "mismatch",
    "whole_candidate": "whole candidate",
    "end_id": "end token", "stop_words": "stop", "length": "length",
}  # fmt: skip


def fit(text: str, width: int) -> str:
    """Return a text in exactly `width` columns, cut with an ellipsis."""
    if cell_len(text) <= width or width < 1:
        return set_cell_size(text, max(0, width))
    return set_cell_size(text, width - 1) + ELLIPSIS


def clip(text: str, width: int) -> str:
    """Return a text in at most `width` columns."""
    return fit(text, width) if cell_len(text) > width else text


class Words:
    """The texts of a run's tokens.

    Args:
        decode: of the model's tokenizer; None: there is none, and tokens are shown as #id.
        text: tokens of the run; one of them is decoded before each other token, since decoders drop
            a text's first space.
    """

    def __init__(self, decode: Decode | None, text: Sequence[int] = ()) -> None:
        self._decode = decode
        self._known: dict[int, str] = {}
        self._before = next((token for token in text if _readable(decode, token)), None)

    def raw(self, token: int) -> str:
        """Return a token's text, or `#id` if it has none of its own, as for special tokens."""
        if token not in self._known:
            text = self._after_another([token])
            self._known[token] = f"#{token}" if not text or _BROKEN in text else text
        return self._known[token]

    def cell(self, token: int) -> str:
        """Return a token for a cell: spaces as dots, unprintable characters escaped."""
        return escaped(self.raw(token)).replace(" ", SPACE)

    def quoted(self, token: int) -> str:
        return f"'{escaped(self.raw(token))}'"

    def end(self, tokens: Sequence[int], width: int) -> str:
        """Return the end of a text on one line, as much as fits into `width` columns."""
        recent = tokens[-width * _MOST_TOKENS :]
        text = "".join(map(self.raw, recent))
        if self._decode is not None:  # omit a letter that they begin within
            text = self._after_another(recent).lstrip(_BROKEN)
        units = [escaped(char) for char in text]
        used, start = 0, len(units)
        while start and used + cell_len(units[start - 1]) < width:
            start -= 1
            used += cell_len(units[start])
        whole = not start and len(recent) == len(tokens)
        return ("" if whole else ELLIPSIS) + "".join(units[start:])

    def _after_another(self, tokens: Sequence[int]) -> str:
        if self._decode is None:
            return ""
        before = [] if self._before is None else [self._before]
        start = len(self._decode(before)) if before else 0
        return self._decode([*before, *tokens])[start:]


def _readable(decode: Decode | None, token: int) -> bool:
    text = decode([token]) if decode else ""
    return bool(text.strip()) and _BROKEN not in text


def escaped(text: str) -> str:
    """Return a text on one line: control characters and unusual spaces as escapes."""

    def shown(char: str) -> str:
        unusual = unicodedata.category(char)[0] in "CZ" and char != " "
        return char.encode("unicode_escape").decode() if unusual or char == "\\" else char

    return "".join(map(shown, text))


def summary(run: RecordedRun) -> str:
    """Describe the run in a line."""
    stats, tokens = run.completion.stats, len(run.completion.output_ids)
    how = f"W,N,G = {run.completion.lookahead}"
    if run.is_tree:
        looks_ahead = "lookahead" in stats.drafter.split(",")
        how = f"auto within {run.completion.lookahead}" if looks_ahead else stats.drafter
    return (
        f"{counted(stats.steps, 'step')} after the prefill, {counted(tokens, 'token')}, "
        f"S = {stats.tokens_per_step:.2f} tokens a step ({how})"
    )


def headline(outcome: Outcome) -> str:
    """Describe a step in a line."""
    number, last = outcome.step.number, len(outcome.run.steps) - 1
    if not number:
        return f"The prefill, step 0 of {last}"
    drafted = len(outcome.step.draft.candidates)
    accepted = f"{len(outcome.accepted)} of {drafted} drafted tokens accepted"
    return f"Step {number} of {last}: {accepted if drafted else 'nothing to verify'}"


def candidates_line(outcome: Outcome, words: Words) -> str:
    """Describe the possible drafts after the input token, and how many were fed."""
    run, step = outcome.run, outcome.step
    if run.is_tree:
        expected = sum(step.draft.values)
        return (
            f"Candidate tree: {counted(len(step.draft.values), 'node')}, {expected:.2f} of which "
            "were expected to be accepted"
        )
    if step.window is None:
        drafted = counted(len(step.draft.tokens), "token")
        return f"Drafted by {run.completion.stats.drafter}: {drafted}"
    most, count = run.completion.lookahead.verification_set_size, len(step.candidates)
    key, fed = words.quoted(outcome.text[-1]), len(outcome.candidates)
    several = "continuation" if count == 1 else "continuations"
    known = f"{count} {several} of {key}" if count else f"nothing after {key}"
    return f"Candidates: the pool has {known}, {fed} fed (G = {most})"


def why(outcome: Outcome, words: Words) -> str:
    """Explain in a sentence or two why the step ended."""
    within = _within(outcome, words)
    length = len(outcome.run.completion.output_ids)
    last = words.quoted(outcome.step.committed[-1])
    end = {
        "end_id": f"The text ends: {last} is an end token.",
        "stop_words": f"The text ends: with {last} it has a stop string or a stop token.",
        "length": f"The text ends: it has its {counted(length, 'token')}.",
    }.get(outcome.reason)
    return f"{within} {end}".strip() if end else within


def _within(outcome: Outcome, words: Words) -> str:
    if not outcome.step.number:
        return "The prefill drafts nothing: it adds the target's first token."
    if outcome.added is None:
        return ""
    added = words.quoted(outcome.added)
    if not outcome.step.draft.candidates:
        return f"{_nothing(outcome)}: the target added {added}."
    if outcome.drafted:
        drafted = " and ".join(map(words.quoted, outcome.drafted))
        return f"First mismatch: drafted {drafted}, the target drew {added}."
    return f"The whole candidate was accepted, and the target added {added}."


def _nothing(outcome: Outcome) -> str:
    run, step = outcome.run, outcome.step
    if run.is_tree:
        return "No node was worth its cost"
    if step.window is None:
        return "Nothing was drafted"
    if not run.completion.lookahead.verification_set_size:
        return "No candidate is verified with G = 0"
    return "Nothing was found in the pool" if not step.candidates else "No candidate was fed"


def document(
    run: RecordedRun, chosen: RecordedStep, words: Words, engine: str, executor: str
) -> dict[str, Any]:
    """Return the whole run: token ids, and texts of the output; `chosen` is the step to draw."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "explain",
        "engine": engine,
        "executor": executor,
        "step": chosen.number,
        "result": result(run.completion).document(),
        "steps": [_step(outcome_of(run, step), words) for step in run.steps],
    }


def _step(outcome: Outcome, words: Words) -> dict[str, Any]:
    step, draft = outcome.step, outcome.step.draft
    return {
        "step": step.number,
        "input": outcome.text[-1] if step.number else None,
        "position": outcome.position if step.number else None,
        "tokens": draft.tokens,
        "parents": draft.parents,
        "positions": positions(step, outcome.position)[1:],
        "roles": [_role(role) for role in roles(step)[1:]],
        "draws": step.committed,
        "accepted": outcome.accepted,
        "accepted_nodes": outcome.accepted_nodes,
        "added": outcome.added,
        "reason": outcome.reason,
        "why": why(outcome, words),
        "candidates": list(map(asdict, outcome.candidates)),
        "window": _window(step.window),
        "new_level": step.observed,
        "window_after": _window(step.window_after),
        "harvest": step.harvest,
        "pool_found": step.candidates,
        "pool_size": step.pool_size,
        "texts": [words.raw(token) for token in step.committed],
        "sources": draft.proposers(range(1, draft.size)) if draft.sources else None,
        "chances": draft.values if draft.sources else None,
        "fates": fates(outcome),
    }


def _role(role: Role) -> dict[str, Any]:
    return {
        "part": role.part,
        "cells": [{"level": level, "column": column} for level, column in role.cells],
        "filler": role.filler,
        "candidates": [{"candidate": number, "place": index} for number, index in role.candidates],
    }


def _window(window: WindowCells | None) -> dict[str, Any] | None:
    if window is None:
        return None
    return {key: getattr(window, key) for key in ("levels", "fillers", "full")}
