"""What trtla prints: results on stdout, notes, progress and errors on stderr, JSON with --json.

Tables are drawn by rich on a terminal and are Markdown elsewhere, readable in logs and files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_LOG_EVERY_S = 10.0
_NUMBERS = re.compile(r"\[\n[-+.\deE,\s]*\]")  # an indented list of numbers
_NUMBER = re.compile(r"-|-?\d+(\.\d+)?")


@dataclass(slots=True)
class Console:
    """How much to print and in which form; one per command line."""

    verbose: bool = False
    quiet: bool = False
    json: bool = False
    color: str = "auto"

    @property
    def colored(self) -> bool:
        """True when texts on stdout get colours."""
        if self.color == "auto":
            return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        return self.color == "always"

    def out(self, text: str = "", end: str = "\n") -> None:
        """Print a result on stdout."""
        sys.stdout.write(text + end)
        sys.stdout.flush()

    def styled(self, text: str, **style: Any) -> str:
        """The text in a style of `click.style`, plain where colours are off."""
        return click.style(text, **style) if self.colored and text else text

    def note(self, text: str) -> None:
        """Print a remark on stderr, unless quiet."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def document(self, value: object, *, line: bool = False) -> None:
        """Print one JSON document on stdout; `line` keeps it on one line."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=None if line else 2)
        self.out(_NUMBERS.sub(lambda match: " ".join(match[0].split()), text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table on stdout; cells are shown with `cell`."""
        cells = [[cell(value) for value in row] for row in rows]
        if sys.stdout.isatty():
            _rich_table(columns, cells)
        else:
            self.out(markdown(columns, cells))

    @contextmanager
    def progress(self, label: str) -> Iterator[Progress | None]:
        """A bar with rate and remaining time on a terminal, a line every 10 s in a log."""
        if self.quiet:
            yield None
        elif sys.stderr.isatty():
            with _bar(label) as update:
                yield update
        else:
            yield _Lines(label).update


def counted(number: int, noun: str) -> str:
    """A number with its noun, which is regular: `1 thread`, `2 threads`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def command_line() -> str:
    """This process's command as it was typed, to stand beside its results."""
    return shlex.join(["trtla", *sys.argv[1:]])


def cell(value: object) -> str:
    """A table cell: numbers right for reading, `-` for what is unknown."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns of numbers are aligned to the right."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    right = [_is_numeric([row[i] for row in rows]) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, right, strict=True)
        return "| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in cells) + " |"

    rules = ["-" * (w - 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True)]
    return "\n".join([line(columns), line(rules), *(line(row) for row in rows)])


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers only and is aligned to the right."""
    return all(_NUMBER.fullmatch(value) for value in cells)


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for i, column in enumerate(columns):
        numeric = _is_numeric([row[i] for row in rows])
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    RichConsole().print(table)


@contextmanager
def _bar(label: str) -> Iterator[Progress]:
    from rich.console import Console as RichConsole
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(
        TextColumn("{task.description}"), *columns, console=RichConsole(stderr=True)
    ) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class _Lines:
    """Progress for logs: silent at first, then a line every 10 s."""

    def __init__(self, label: str) -> None:
        self.label, self.start = label, time.monotonic()
        self.due = self.start + _LOG_EVERY_S

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + _LOG_EVERY_S
        rate = done / (now - self.start)
        left = (total - done) / rate if rate else float("inf")
        print(
            f"{self.label}: {done / 1e6:.0f} of {total / 1e6:.0f} MB, "
            f"{rate / 1e6:.0f} MB/s, {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )
