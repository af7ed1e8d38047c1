"""The page of a report: the figures of all files, their headline, and the filled template.

The template escapes everything that comes from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from trtla.console import counted
from trtla.extras.bench.documents import whole_category
from trtla.extras.bench.report.reading import read
from trtla.measuring.summaries import ROUGE
from trtla.results.rows import Document, Row
from trtla.settings.sampling import filters_text
from trtla.version import __version__

_PLAIN = ("ar", "none", "trtla_without_lookahead")
"""Names of plain decoding in documents."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a file, with the conditions under which its arms are compared."""

    number: int
    """The number of the file, from 1."""
    conditions: str
    row: Row
    is_whole: bool
    """True: the row is over all categories of its file."""

    @property
    def name(self) -> str:
        return f"{self.row.arm} ({self.row.setting})" if self.row.setting else self.row.arm

    @property
    def speedup(self) -> float:
        return self.row.speedup_vs_ar or 0.0


def report(paths: Sequence[Path], title: str) -> str:
    """Return the page of the files."""
    documents = [read(path) for path in paths]
    lines = [line for number, one in enumerate(documents, 1) for line in _lines(number, one)]
    whole = [line for line in lines if line.is_whole and line.speedup]
    best = max((x for x in whole if x.row.arm not in _PLAIN), key=lambda x: x.speedup, default=None)
    return _fill(
        title=title,
        version=__version__,
        headline=headline(best),
        best=best,
        lines=lines,
        groups=[list(group) for _, group in groupby(whole, lambda x: (x.number, x.conditions))],
        top=max([1.0, *(line.speedup for line in whole)]),
        rouge=[name for name in ROUGE if any(getattr(line.row, name) for line in lines)],
        files=list(zip(paths, documents, strict=True)),
    )


def headline(best: Line | None) -> str:
    """Return the sentence on the fastest arm except plain decoding."""
    if best is None:
        return "Nothing in these files is compared with plain decoding."
    if best.speedup <= 1.0:
        return f"Nothing is faster than plain decoding; {best.name} is {best.speedup:.2f}x as fast."
    return f"{best.name} decodes {best.speedup:.2f}x as fast as plain decoding."


def _lines(number: int, document: Document) -> list[Line]:
    """Return the measured rows of a document, with arms under equal conditions together."""
    whole = whole_category(document.rows)
    measured = [row for row in document.rows if row.tokens_per_s is not None]
    lines = [Line(number, _conditions(document, x), x, x.category == whole) for x in measured]
    order = list(dict.fromkeys((line.conditions, line.row.category) for line in lines))
    return sorted(lines, key=lambda x: (order.index((x.conditions, x.row.category)), -x.speedup))


def _conditions(document: Document, row: Row) -> str:
    """Return the conditions of a measurement in words."""
    parts = (
        Path(document.model or "model not recorded").name,
        row.executor or f"{row.device}, {row.dtype}",
        row.threads and counted(row.threads, "thread"),
        row.batch_size and f"batch {row.batch_size}",
        filters_text(row.temperature, row.top_k, row.top_p),
        row.prompt_len and f"prompts of {counted(row.prompt_len, 'token')}",
    )
    return ", ".join(str(part) for part in parts if part)


def _fill(**values: object) -> str:
    from jinja2 import Environment, StrictUndefined

    inner = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    inner.filters.update(figure=figure, counted=counted)
    text = files("trtla.extras.bench.report").joinpath("page.html").read_text(encoding="utf-8")
    return inner.from_string(text).render(values)


def figure(value: float | None, unit: str = "") -> str:
    """Format a number for a cell, large ones without decimals."""
    if value is None:
        return "-"
    return f"{value:.0f}{unit}" if abs(value) >= 100 else f"{value:.2f}{unit}"
