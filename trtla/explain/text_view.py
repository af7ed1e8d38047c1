"""A run and one of its steps for a terminal of 100 columns.

The run is a strip, a row a step; a step is its window, n-grams, candidates, mask, and why it ended.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from trtla.console import counted
from trtla.explain.mask import roles
from trtla.explain.mask_view import mask_lines
from trtla.explain.record import RecordedRun, RecordedStep, WindowCells
from trtla.explain.step_outcome import Candidate, Fate, Outcome, TreeNode, outcome_of, tree_nodes
from trtla.explain.words import (
    CHECK,
    CROSS,
    ELLIPSIS,
    SHORT,
    WIDTH,
    Paint,
    Style,
    Words,
    candidates_line,
    clip,
    fit,
    headline,
    summary,
    why,
)

_GUTTER = 13
_WIDEST, _NARROWEST = 11, 4  # columns of a cell
_ROOM = WIDTH - 2 - _GUTTER
_SOURCES = 23  # columns for where a candidate was seen
_REASON = 17

_TOKENS, _SOURCE, _LEAST = 44, 10, 4  # columns of the tree
_LAST, _NEXT, _PASS, _NOTHING = "└ ", "├ ", "│ ", "  "
_FATES: dict[Fate, tuple[str, Style]] = {
    "accepted": (CHECK, "accepted"),
    "rejected": (CROSS, "rejected"),
    "not reached": ("", "dim"),
}


def strip_lines(run: RecordedRun, words: Words, paint: Paint) -> Iterator[str]:
    """The run, a row a step; accepted tokens in brackets, so that it needs no colours."""
    width = WIDTH - 12 - _REASON
    yield paint(summary(run), "bold")
    yield "Accepted tokens are in [brackets], the others are the target's own."
    yield f"step   fed  {'tokens'.ljust(width)} ended by"
    for step in run.steps:
        outcome = outcome_of(run, step)
        fed = step.draft.size if step.number else len(run.completion.input_ids)
        tokens = [(f"[{words.cell(token)}]", True) for token in outcome.accepted]
        if outcome.added is not None:
            tokens.append((words.cell(outcome.added), False))
        line = _fitted(tokens, width, paint)
        yield f"{step.number:4} {fed:5}  {line} {SHORT[outcome.reason]}"


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


def step_lines(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> list[str]:
    """One step."""
    outcome = outcome_of(run, step)
    lines = [paint(headline(run, step, outcome), "bold"), *draft_lines(run, step, words, paint)]
    if step.number:
        lines += ["", *mask_lines(run, step, outcome.accepted_nodes, words, paint)]
    return [*lines, "", *ending_lines(run, step, words, paint)]


def draft_lines(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    """What a step fed: the text, window, n-grams and candidates."""
    yield from (*_fed(step), "", *_text(run, step, words))
    if not step.number:
        yield from _start(run, step, words, paint)
        return
    yield from _window(run, step, words, paint)
    yield from _candidates(run, step, words, paint)


def _fed(step: RecordedStep) -> list[str]:
    if not step.number:
        return []
    parts = [role.part for role in roles(step)]
    window, candidates = parts.count("window") + parts.count("filler"), parts.count("candidate")
    what = [f"{window} of the window"] * bool(window) + [f"{candidates} of candidates"]
    return [f"Fed in one forward: {counted(len(parts), 'token')} = 1 input + {' + '.join(what)}."]


def _text(run: RecordedRun, step: RecordedStep, words: Words) -> list[str]:
    if not step.number:
        prompt = run.completion.input_ids
        return [
            f"Prompt  {words.end(prompt, WIDTH - 8)}",
            f"        {counted(len(prompt), 'token')}",
        ]
    *before, last = run.text_before(step)
    return [
        f"Text   {words.end(before, WIDTH - 7)}",
        f"Input  {words.quoted(last)} at position {run.position(step)}",
    ]


def _window(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    if step.window is None:
        return
    window = step.window
    yield ""
    yield from _wrapped(_about_window(run, step, window))
    yield from _grid(window, words, paint)
    yield from _new_level(step, words, paint)
    yield from _harvest(step, words, paint)


def _about_window(run: RecordedRun, step: RecordedStep, window: WindowCells) -> str:
    levels, most = len(window.levels), run.completion.lookahead.ngram_size - 1
    start = run.position(step) + (0 if window.full else len(window.fillers) + 1)
    word = "level" if most == 1 else "levels"
    filling = "" if window.full else f", {levels} of them filled so far"
    return (
        f"Window: W = {len(window.levels[0])} columns, N-1 = {most} {word}{filling}: guesses "
        f"about what comes. Level l, column j stands at position {start} + l + j."
    )


def _grid(window: WindowCells, words: Words, paint: Paint) -> Iterator[str]:
    size, shown = _cell_size(len(window.levels[0]))
    yield _line("", [fit(f"column {j}" if size > 8 else f"{j}", size) for j in range(shown)])
    if window.fillers:
        fillers = " ".join(map(words.cell, window.fillers))
        yield f"  {fit('fillers', _GUTTER)}{clip(fillers, _ROOM)}"
    for level, tokens in enumerate(window.levels):
        cells = [paint(fit(words.cell(token), size), "window") for token in tokens[:shown]]
        if window.full and not level:
            cells[0] = paint(fit(words.cell(tokens[0]), size), "input")
        yield _line(f"level {level}", cells)


def _new_level(step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    if step.observed:
        size, shown = _cell_size(len(step.observed))
        cells = [paint(fit(words.cell(token), size), "bold") for token in step.observed[:shown]]
        yield _line("new level", cells)
        newest = "drawn" if step.draft.drawn else "most probable"
        yield from _wrapped(
            f"The new level is the target's {newest} token after each cell of the newest one. "
            + ("Level 0 goes, the others move up." if step.harvest else "No level goes yet.")
        )


def _harvest(step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    if not step.harvest:
        return
    yield ""
    yield f"Collected into the pool: {len(step.harvest)} n-grams, one a column"
    length = len(step.harvest[0])
    size, shown = _cell_size(length + 1)
    for column, (key, *value) in enumerate(step.harvest):
        cells = [fit(words.cell(key), size), *(fit(words.cell(t), size) for t in value)]
        cells.insert(1, fit("->", 2))
        yield _line(f"column {column}", [paint(cell, "window") for cell in cells[: shown + 1]])


def _candidates(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    outcome = outcome_of(run, step)
    yield ""
    yield from _wrapped(candidates_line(run, step, outcome, words))
    if run.is_tree:
        yield from _tree(step, outcome, words, paint)
        return
    if not outcome.candidates:
        return
    longest = max(len(candidate.tokens) for candidate in outcome.candidates)
    size, shown = _cell_size(longest + 1, _ROOM - _SOURCES)
    position = run.position(step)
    seen_in = "seen in" if step.window is not None else ""
    places = [fit(str(position + 1 + i), size) for i in range(shown)]
    yield _line("position", [*places, seen_in])
    drawn = [
        paint(fit(words.cell(token), size), "accepted" if i < len(outcome.accepted) else "bold")
        for i, token in enumerate(step.committed[:shown])
    ]
    yield _line("target drew", drawn)
    for number, candidate in enumerate(outcome.candidates, 1):
        yield _candidate(number, candidate, (size, shown), words, paint)


def _candidate(
    number: int, candidate: Candidate, grid: tuple[int, int], words: Words, paint: Paint
) -> str:
    size, shown = grid
    cells = []
    for place, token in enumerate(candidate.tokens[:shown]):
        style: Style = "accepted" if place < candidate.matched else "dim"
        mark = CHECK if place < candidate.matched else " "
        if place == candidate.matched:
            style, mark = "rejected", CROSS
        cells.append(paint(fit(clip(words.cell(token), size - 2) + " " + mark, size), style))
    sources = ", ".join(candidate.sources)
    cells += [" " * size] * (shown - len(cells))
    return _line(f"candidate {number}", [*cells, sources])


def _tree(step: RecordedStep, outcome: Outcome, words: Words, paint: Paint) -> Iterator[str]:
    """A row a node with its source, chance and fate; nothing where no node was fed."""
    nodes = tree_nodes(step, outcome.accepted_nodes)
    if nodes:
        yield f"  {fit('token', _TOKENS)}{fit('source', _SOURCE)}chance  fate"
    for place, one in enumerate(nodes):
        branch = _branch(nodes, place)
        token = clip(words.cell(one.token), max(_LEAST, _TOKENS - 2 - len(branch)))
        mark, style = _FATES[one.fate]
        fate = paint(f"{one.fate} {mark}".rstrip(), style)
        figures = f"{fit(one.source, _SOURCE)}{one.chance:6.2f}"
        yield f"  {fit(branch + token, _TOKENS)}{figures}  {fate}"
    if any(one.source == "both" for one in nodes):
        yield "  both: a text and a row of logits propose the token"


def _branch(nodes: Sequence[TreeNode], place: int) -> str:
    """The lines before a node: on each level, whether a further node follows below the same one."""
    line, own = "", nodes[place].depth
    for depth in range(1, own + 1):
        after = next((one.depth for one in nodes[place + 1 :] if one.depth <= depth), 0)
        here, above = (_NEXT, _PASS) if after == depth else (_LAST, _NOTHING)
        line += here if depth == own else above
    return line


def _start(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    yield ""
    window = step.window_after
    if window is None:
        lacks = "a window is fed where it pays" if run.is_tree else "this drafter has no window"
        yield f"Nothing is prepared: {lacks}."
        return
    yield f"The pool starts with the n-grams of the prompt: {step.pool_size} are kept."
    yield from _wrapped(
        "The window starts with tokens drawn from the prompt: they change the speed, never the "
        "text."
    )
    yield from _grid(window, words, paint)


def ending_lines(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    """What a step brought, and why it ended."""
    outcome = outcome_of(run, step)
    accepted = [paint(words.quoted(token), "accepted") for token in outcome.accepted]
    if accepted:
        yield "Accepted: " + " ".join(accepted)
    if outcome.added is not None:
        yield "Added by the target: " + paint(words.quoted(outcome.added), "bold")
    yield from _wrapped("Why it ended: " + why(run, step, outcome, words))


def _cell_size(columns: int, room: int = _ROOM) -> tuple[int, int]:
    """(width of a cell, cells that fit) for a grid of so many columns."""
    size = max(_NARROWEST, min(_WIDEST, (room + 1) // columns - 1))
    return size, min(columns, (room + 1) // (size + 1))


def _line(label: str, cells: Sequence[str]) -> str:
    return f"  {fit(label, _GUTTER)}{' '.join(cells)}".rstrip()


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)
