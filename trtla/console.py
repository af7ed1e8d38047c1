"""Output of trtla: results on stdout, notes, progress and errors on stderr, JSON with --json.

Tables are drawn by rich on a terminal and are Markdown elsewhere, readable in logs and files.
Headings are never cut: a table too wide for the terminal is split, each part with the first column.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

Progress = Callable[[int, int], None]
"""Called with (done, in all), in bytes or in a stage's unit."""
Stages = Callable[[str, str], AbstractContextManager[Progress]]
"""(label, unit) -> the progress of a stage, as `Console.progress`."""
TableText = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
"""(headings, cells of each row) -> a table, such as `markdown` and `Console.table_text`."""
BYTES = "bytes"

_LOG_EVERY_S = 10.0
_NUMBERS = re.compile(r"\[\n[-+.\deE,\s]*\]")  # an indented list of numbers
_NUMBER = re.compile(r"-|-?\d+(\.\d+)?")


@dataclass(slots=True)
class Console:
    """The amount and the form of output; one per command line."""

    verbose: bool = False
    quiet: bool = False
    json: bool = False
    color: str = "auto"
    advice: str = ""
    """A note for the next output; an error that comes first drops it."""

    @property
    def colored(self) -> bool:
        if self.color == "auto":
            return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        return self.color == "always"

    def out(self, text: str = "", end: str = "\n") -> None:
        self._advise()
        sys.stdout.write(text + end)
        sys.stdout.flush()

    def styled(self, text: str, **style: Any) -> str:
        if not self.colored or not text:
            return text
        import click

        return click.style(text, **style)

    def note(self, text: str) -> None:
        self._advise()
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def _advise(self) -> None:
        text, self.advice = self.advice, ""
        if text:
            self.note(text)

    def document(self, value: object, *, line: bool = False) -> None:
        """Print one JSON document on stdout; `line` keeps it on one line."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=None if line else 2)
        self.out(_NUMBERS.sub(lambda match: " ".join(match[0].split()), text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table on stdout; cells are shown with `cell`."""
        self.out(self.table_text(columns, [[cell(value) for value in row] for row in rows]))

    def table_text(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        """A table in the form for stdout."""
        if not sys.stdout.isatty():
            return markdown(columns, rows)
        return drawn(columns, rows, shutil.get_terminal_size().columns, colored=self.colored)

    @contextmanager
    def progress(
        self, label: str, unit: str = BYTES, more: Callable[[], str] = str, before: int = 0
    ) -> Iterator[Progress]:
        """Show the progress of a stage: a bar on a terminal; in a log a line at its ends and every
        10 s.

        It begins with the first call, and ends when all is done or the block is exited.

        Args:
            unit: the counted unit, as a plural.
            more: returns text to show behind the count.
            before: what was done in an earlier run, and does not count towards the speed.
        """
        self._advise()
        if self.quiet:
            yield lambda done, total: None
        elif sys.stderr.isatty():
            bar = _Bar(label, unit, more)
            try:
                yield bar.update
            finally:
                bar.close()
        else:
            yield _Lines(label, unit, more, before).update


@contextmanager
def silent(label: str, unit: str) -> Iterator[Progress]:
    """The stages of a caller that reports none."""
    yield lambda done, total: None


def counted(number: int, noun: str) -> str:
    """A number with its regular noun: `1 thread`, `2 threads`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(count: int) -> str:
    """Bytes for people: `16.06 GB`, `12.3 MB`."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """A time for people: `98 s`, `12 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def starting(known: Iterable[str], incomplete: str, *, part: bool = False) -> list[str]:
    """The names that continue a typed text; of a comma list (`part`) its last item, none twice."""
    before, comma, last = incomplete.rpartition(",") if part else ("", "", incomplete)
    taken = before.split(",")
    return [
        before + comma + name
        for name in known
        if name.startswith(last) and name not in taken and not (comma and name == "none")
    ]


def command_line() -> str:
    """This process's command as it was typed, for printing beside its results."""
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
    return all(_NUMBER.fullmatch(value) for value in cells)


_LONGEST_WORD = 20
"""Columns of a cell's word that stays whole on a terminal; numbers always do."""

Columns = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings, and the cells of each row."""


def drawn(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, colored: bool = False
) -> str:
    """A table for a terminal of this width; headings and texts wrap between words."""
    parts = _parts(columns, rows, width)
    return "\n\n".join(_rich_table(*part, width, colored=colored) for part in parts)


def _least(columns: Sequence[str], rows: Sequence[Sequence[str]], column: int) -> int:
    """The narrowest possible width of a column whose texts wrap."""
    cells = [row[column] for row in rows]
    heading = max(map(len, columns[column].split()), default=0)
    longest = max((len(word) for value in cells for word in value.split()), default=0)
    return max(heading, longest if _is_numeric(cells) else min(longest, _LONGEST_WORD))


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[tuple[int, bool]]:
    """The width of each column, and True if it holds numbers; the first ones get spare room."""
    least = [_least(columns, rows, column) for column in range(len(columns))]
    spare = max(width - 1 - sum(narrow + _FRAME for narrow in least), 0)
    for column, narrow in enumerate(least):
        more = min(_widest(columns, rows, column) - narrow, spare)
        spare -= more
        yield narrow + more, _is_numeric([row[column] for row in rows])


def _widest(columns: Sequence[str], rows: Sequence[Sequence[str]], column: int) -> int:
    """The width of a column whose texts do not wrap."""
    return max(len(row[column]) for row in [columns, *rows])


_FRAME = 3  # columns of a rule and two blanks


def _parts(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[Columns]:
    """The columns that fit beside each other, each part behind the first column."""
    least = [_least(columns, rows, column) for column in range(len(columns))]
    chosen, room = [0], width - 1 - _FRAME - least[0]
    for column in range(1, len(columns)):
        if least[column] + _FRAME > room and len(chosen) > 1:
            yield _chosen(columns, rows, chosen)
            chosen, room = [0], width - 1 - _FRAME - least[0]
        chosen.append(column)
        room -= least[column] + _FRAME
    yield _chosen(columns, rows, chosen)


def _chosen(
    columns: Sequence[str], rows: Sequence[Sequence[str]], chosen: Sequence[int]
) -> Columns:
    return [columns[i] for i in chosen], [[row[i] for i in chosen] for row in rows]


def _rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, colored: bool
) -> str:
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for column, (wide, numeric) in zip(columns, _widths(columns, rows, width), strict=True):
        table.add_column(column, justify="right" if numeric else "left", width=wide)
    for row in rows:
        table.add_row(*(Text(value, overflow="fold") for value in row))
    out = io.StringIO()
    screen = RichConsole(
        file=out,
        width=width,
        force_terminal=colored,
        color_system="standard" if colored else None,
    )
    screen.print(table)
    return out.getvalue().rstrip("\n")


class _Bar:
    def __init__(self, label: str, unit: str, more: Callable[[], str]) -> None:
        self._label, self._unit, self._more = label, unit, more
        self._live: Any = None

    def update(self, done: int, total: int) -> None:
        if self._live is None:
            self._live = self._started()
        fields = {"completed": done, "total": total, "more": self._more()}
        self._live.update(self._live.task_ids[0], **fields)
        if done == total:
            self.close()

    def _started(self) -> Any:
        from rich import progress as rich
        from rich.console import Console as RichConsole

        counts: list[Any] = [rich.MofNCompleteColumn(), rich.TextColumn(self._unit)]
        if self._unit == BYTES:
            counts = [rich.DownloadColumn(), rich.TransferSpeedColumn()]
        if self._more is not str:
            counts.append(rich.TextColumn("{task.fields[more]}"))
        columns = [rich.BarColumn(), *counts, rich.TimeRemainingColumn()]
        text, screen = rich.TextColumn("{task.description}"), RichConsole(stderr=True)
        live = rich.Progress(text, *columns, console=screen, redirect_stdout=False)
        live.add_task(self._label, total=None, more="")
        live.start()
        return live

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


class _Lines:
    def __init__(self, label: str, unit: str, more: Callable[[], str], before: int) -> None:
        self._label, self._unit, self._more, self._before = label, unit, more, before
        self._start = self._due = time.monotonic()

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._due and done < total:
            return
        self._due = now + _LOG_EVERY_S
        count = f"{done} of {total} {self._unit}"
        if self._unit == BYTES:
            count = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
        parts = filter(None, [count, self._more(), *self._times(done, total, now - self._start)])
        print(f"{self._label}: {', '.join(parts)}", file=sys.stderr, flush=True)

    def _times(self, done: int, total: int, seconds: float) -> list[str]:
        new = done - self._before
        if not new:
            return []
        if 100 * new < total - self._before:  # too little to tell what is left
            return [duration(seconds)]
        left = (total - done) * seconds / new
        return [duration(seconds), *([f"{duration(left)} left"] if done < total else [])]
