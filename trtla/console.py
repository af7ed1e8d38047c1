"""Output of trtla: results on stdout, notes, progress and errors on stderr, JSON with --json.

Tables are drawn by rich on a terminal and are Markdown elsewhere, readable in logs and files.
Headings are never cut: a table too wide for the terminal is split, each part with the first column.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
        by_itself = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        return self.color == "always" or (self.color == "auto" and by_itself)

    def out(self, text: str = "", end: str = "\n") -> None:
        self._advise()
        sys.stdout.write(text + end)
        sys.stdout.flush()

    def styled(self, text: str, **style: Any) -> str:
        import click

        return click.style(text, **style) if self.colored and text else text

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
        """Show the progress of a stage, from its first call until all is done or the block ends: a
        bar on a terminal; in a log a line at its ends and every 10 s.

        Args:
            unit: the counted unit, as a plural.
            more: returns text to show behind the count.
            before: what was done in an earlier run, and does not count towards the speed.
        """
        self._advise()
        if self.quiet:
            yield lambda done, total: None
        elif sys.stderr.isatty():
            with _bar(label, unit, more) as update:
                yield update
        else:
            yield _lines(label, unit, more, before)


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


def command_line() -> str:
    """This process's command as it was typed, for printing beside its results."""
    return shlex.join(["trtla", *sys.argv[1:]])


def cell(value: object) -> str:
    """A table cell: numbers right for reading, `-` for what is unknown."""
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)


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


def drawn(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, colored: bool = False
) -> str:
    """A table for a terminal of this width; headings and texts wrap between words."""
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    texts = [[name, *(row[i] for row in rows)] for i, name in enumerate(columns)]
    words = (max(map(len, " ".join(text).split()), default=0) for text in texts)
    least = [min(word, 20) for word in words]  # longer ones are folded where there is no room
    parts = [[0]]
    for i in range(1, len(columns)):
        if len(parts[-1]) > 1 and 1 + sum(3 + least[k] for k in [*parts[-1], i]) > width:
            parts.append([0])  # it goes on below, behind the first column
        parts[-1].append(i)
    screen = RichConsole(width=width, force_terminal=colored)
    with screen.capture() as shown:
        for part in parts:
            table, spare = Table(header_style="bold"), width - 1 - sum(3 + least[i] for i in part)
            for i in part:
                wide = min(max(map(len, texts[i])), least[i] + max(spare, 0))
                spare -= wide - least[i]
                side: Any = "right" if _is_numeric(texts[i][1:]) else "left"
                table.add_column(columns[i], width=wide, justify=side)
            for row in rows:
                table.add_row(*(Text(row[i], overflow="fold") for i in part))
            screen.print(table, "")
    return shown.get().rstrip("\n")


@contextmanager
def _bar(label: str, unit: str, more: Callable[[], str]) -> Iterator[Progress]:
    from rich import progress as rich
    from rich.console import Console as RichConsole

    counts: list[Any] = [rich.MofNCompleteColumn(), rich.TextColumn(unit)]
    if unit == BYTES:
        counts = [rich.DownloadColumn(), rich.TransferSpeedColumn()]
    columns = [rich.BarColumn(), *counts, "{task.fields[more]}", rich.TimeRemainingColumn()]
    screen = RichConsole(stderr=True)
    live = rich.Progress("{task.description}", *columns, console=screen, redirect_stdout=False)
    task = live.add_task(label, total=None, more="")

    def update(done: int, total: int) -> None:
        if not live.finished:
            live.start()
        live.update(task, completed=done, total=total, more=more())
        if done == total:
            live.stop()

    try:
        yield update
    finally:
        live.stop()


def _lines(label: str, unit: str, more: Callable[[], str], before: int) -> Progress:
    start = due = time.monotonic()

    def update(done: int, total: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now < due and done < total:
            return
        due, new, seconds = now + 10.0, done - before, now - start
        scale, name = (1e6, "MB") if unit == BYTES else (1, unit)
        count = f"{done / scale:.0f} of {total / scale:.0f} {name}"
        times = [duration(seconds)] if new else []
        if times and done < total and 100 * new >= total - before:  # enough to tell what is left
            times.append(f"{duration((total - done) * seconds / new)} left")
        parts = ", ".join(filter(None, [count, more(), *times]))
        print(f"{label}: {parts}", file=sys.stderr, flush=True)

    return update
