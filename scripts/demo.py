#!/usr/bin/env python3
"""What scripts/demo.sh measures: four answers with and without lookahead, and one sentence on them.

    .venv/bin/python scripts/demo.py --engine-dir demo-output/engine [--set code] [--color always]

Every prompt is decoded plainly and with `auto`, in turns, until their ratio is certain. Ratios are
taken turn by turn: other work on the machine slows both sides of a turn. All requests are private:
none copies an earlier answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev
from textwrap import shorten, wrap

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.console import Console, counted
from trtla.llm.answer import Piece
from trtla.machine import cpu

LEAST_ROUNDS, MOST_ROUNDS = 5, 15
CERTAIN = 0.02
"""The standard error of the ratio that ends the rounds, as a share of it."""
WIDTH = 96
SHOWN_LINES = 5
"""Of an answer."""
FASTER = 1.05
"""A ratio that is more than what timings scatter."""
BUSY = 1.3
"""Rounds that lie further apart indicate a busy machine."""

PLAIN = LookaheadConfig(1, 1, 0)
_TRAM = (
    "The city council voted on Tuesday to keep the old tram line along the river open for at least "
    "ten more years. The line, which opened in 1911, carries about four thousand people a day, "
    "most of them students and shift workers."
)
_MORE = (
    " Two years ago the council had planned to replace it with buses, which cost less to run. "
    "More than nine thousand residents signed a petition against the plan."
)
_SISTER = (
    "My sister live in a small town near the sea. Every morning she walk to the beach with her "
    "dog, and in the evening she read a book by the window."
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked, and what the table calls it."""

    name: str
    text: str


CHAT = (
    Prompt("code", "Write a Python function that checks whether a string is a palindrome."),
    Prompt("an edit", f"Correct the grammar of this text:\n\n{_SISTER}"),
    Prompt("a summary", f"Summarize this text in one sentence:\n\n{_TRAM}{_MORE}"),
    Prompt(
        "a quotation",
        f"When did the tram line open, and who uses it? Answer from the text.\n\n{_TRAM}",
    ),
)
"""Those whose answers are shown come first."""
CODE = (
    Prompt("a method", '    def read_line(self, encoding="utf-8"):\n        """Read'),
    Prompt("a class", "class Stack:\n    def __init__(self, items=None):\n        self.items ="),
    Prompt("a list", "names = [\n    'name1',\n    'name2',\n    'name3',\n"),
)
"""For the model that ships with trtla, which continues Python."""
SHOWN = 2
"""Prompts whose answers are printed."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One answer."""

    pieces: tuple[Piece, ...]
    ids: tuple[int, ...]
    tokens_per_s: float
    """The speed after the first tokens."""
    tokens_per_step: float


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt's answers, medians over the rounds."""

    name: str
    tokens: int
    plain: float
    auto: float
    """Tokens per second, like `plain`."""
    ratio: float
    """The speed-up, turn by turn."""
    tokens_per_step: float
    same: bool
    scatter: float
    """How far the rounds of plain decoding lie apart, as a ratio."""


def decode(llm: LLM, prompt: Prompt, *, chat: bool, auto: bool) -> Decoded:
    """Decode one prompt."""
    asked = [[{"role": "user", "content": prompt.text}]] if chat else [prompt.text]
    ids: list[int] = []
    pieces: list[Piece] = []
    first, start = 0, 0.0
    chunks = llm.stream(
        asked, SamplingParams(max_output_len=128), "auto" if auto else PLAIN, private=True
    )
    for chunk in chunks:
        if not ids:
            first, start = len(chunk.token_ids), time.perf_counter()
        ids += chunk.token_ids
        pieces += chunk.pieces or ()
        if chunk.completion is not None:
            steps = chunk.completion.stats.tokens_per_step
    took = max(time.perf_counter() - start, 1e-9)
    return Decoded(tuple(pieces), tuple(ids), (len(ids) - first) / took, steps)


def measure(llm: LLM, prompt: Prompt, *, chat: bool) -> tuple[Row, Decoded]:
    """Decode a prompt both ways, once to warm up and then in turns."""
    turns: list[tuple[Decoded, Decoded]] = []
    while not is_certain(
        ratios := [auto.tokens_per_s / plain.tokens_per_s for plain, auto in turns[1:]]
    ):
        turns.append(
            (decode(llm, prompt, chat=chat, auto=False), decode(llm, prompt, chat=chat, auto=True))
        )
    plain, auto = zip(*turns, strict=True)
    speeds = [answer.tokens_per_s for answer in plain[1:]]
    row = Row(
        prompt.name,
        len(auto[0].ids),
        median(speeds),
        median(answer.tokens_per_s for answer in auto[1:]),
        median(ratios),
        median(answer.tokens_per_step for answer in auto[1:]),
        len({answer.ids for answer in (*plain, *auto)}) == 1,
        max(speeds) / min(speeds),
    )
    return row, auto[-1]


def is_certain(ratios: Sequence[float]) -> bool:
    """Return True if more turns would hardly change the ratio, or after many."""
    if len(ratios) < LEAST_ROUNDS:
        return False
    error = stdev(ratios) / len(ratios) ** 0.5
    return error <= CERTAIN * median(ratios) or len(ratios) >= MOST_ROUNDS


def verdict(rows: Sequence[Row], place: str) -> str:
    """One sentence that is true of what was measured."""
    changed = [row.name for row in rows if not row.same]
    if changed:
        return f"Lookahead changed the text of {' and '.join(changed)}: please report this fault."
    best = max(rows, key=lambda row: row.ratio)
    whole, most = overall(rows), f"{best.ratio:.2f}x for {best.name}"
    if whole >= FASTER:
        speed = f"these answers come {whole:.2f}x as fast with lookahead ({most})"
    elif best.ratio >= FASTER:
        speed = f"lookahead pays only where text repeats ({most}; {whole:.2f}x over all)"
    else:
        speed = f"lookahead is not faster ({whole:.2f}x over all)"
    return f"On {place}, {speed}, and all {len(rows)} texts are the same as without it."


def overall(rows: Sequence[Row]) -> float:
    """The speed-up of all answers together, by their times."""
    times = [row.tokens / row.plain for row in rows]
    return sum(times) / sum(s / row.ratio for s, row in zip(times, rows, strict=True))


def table(rows: Sequence[Row]) -> list[str]:
    """The figures, rounded for people."""
    heads = [
        "",
        "tokens",
        "plain tokens/s",
        "with lookahead",
        "speed-up",
        "tokens a step",
        "same text",
    ]
    cells = [
        [
            row.name,
            str(row.tokens),
            f"{row.plain:.0f}",
            f"{row.auto:.0f}",
            f"{row.ratio:.2f}x",
            f"{row.tokens_per_step:.1f}",
            "yes" if row.same else "NO",
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (heads, *cells)
    ]


def answer_lines(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """An answer's first lines without blank ones, each as its pieces, wrapped between words."""
    text = "".join(piece for piece, _ in pieces)
    drafted = [accepted for piece, accepted in pieces for _ in piece]
    lines: list[list[Piece]] = []
    for start, line in _lines(text):
        if len(lines) == SHOWN_LINES:
            lines[-1].append((" ...", False))
            break
        lines.append(_runs(line, drafted[start : start + len(line)]))
    return lines


def _lines(text: str) -> list[tuple[int, str]]:
    """Its lines with where they begin."""
    found, place = [], 0
    for whole in text.split("\n"):
        for line in wrap(whole, WIDTH - 3, drop_whitespace=False, replace_whitespace=False):
            if line.strip():
                found.append((place, line))
            place += len(line)
        place += 1
    return found


def _runs(line: str, drafted: Sequence[bool]) -> list[Piece]:
    """A line as stretches that were accepted and others."""
    runs: list[Piece] = []
    for letter, accepted in zip(line, drafted, strict=True):
        if runs and runs[-1][1] == accepted:
            runs[-1] = (runs[-1][0] + letter, accepted)
        else:
            runs.append((letter, accepted))
    return runs


def show(console: Console, prompt: Prompt, answer: Decoded) -> None:
    """Print a question and its answer, accepted tokens in green."""
    console.out(f"\nQ  {shorten(prompt.text, WIDTH - 3, placeholder=' ...')}")
    for number, line in enumerate(answer_lines(answer.pieces)):
        shown = [console.styled(text, fg="green") if accepted else text for text, accepted in line]
        console.out(f"{'   ' if number else 'A  '}{''.join(shown)}")


def main() -> int:
    """Measure and print; 1 where a text differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine-dir", required=True)
    parser.add_argument("--set", choices=("chat", "code"), default="chat")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    args = parser.parse_args()
    console, chat = Console(color=args.color), args.set == "chat"
    prompts, rows = CHAT if chat else CODE, []
    with LLM(args.engine_dir) as llm:
        for number, prompt in enumerate(prompts):
            row, answer = measure(llm, prompt, chat=chat)
            rows.append(row)
            if number < SHOWN:
                show(console, prompt, answer)
    console.out("\n" + "\n".join(table(rows)))
    if (scatter := max(row.scatter for row in rows)) > BUSY:
        console.out(f"(a busy machine: rounds differ by up to {scatter:.1f}x)")
    machine = cpu()
    place = f"this machine ({counted(machine.cores, 'core')} of {machine.model})"
    console.out("\n" + console.styled(verdict(rows, place), bold=True))
    return 0 if all(row.same for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
