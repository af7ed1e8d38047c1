"""A job's lines as tasks for other processes that hold the model.

A task holds its lines' offsets and digests; the process that does it reads them, and returns
records as in a single process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtla.errors import TrtlaError, UsageError
from trtla.extras.batch.journal import Record
from trtla.extras.batch.lines import Line, LineRequest, Survey, lines_at, parse
from trtla.extras.batch.work import Decoding, Labelling
from trtla.llm.llm import LLM

_LINES = 4
"""Lines of a task: few, since an interrupted task is repeated."""
_NO_LINE = 0
"""In place of a line's number: the record holds the error that ends the job."""
Rows = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LineShare:
    """The facts of a job that every process needs."""

    source: Path
    labelling: Labelling
    kind: type[Record] = Record
    most_rows: int = _LINES

    def results(self, llm: LLM, rows: Rows) -> list[Record]:
        """Return the records of a task's lines."""
        requests = list(_requests(self.source, rows))
        return list(Decoding(llm, self.labelling, print).records(requests))

    def failure(self, problem: TrtlaError) -> Record:
        """Return the record of an error that ends the job."""
        report = f"{problem.exit_code}\n{problem.message}\n{problem.hint or ''}"
        return Record(_NO_LINE, True, 0, 0, report.encode())


def _requests(source: Path, rows: Rows) -> Iterator[LineRequest]:
    lines = lines_at(source, ((number, start) for number, start, _, _ in rows))
    for line, (number, _, first, digest) in zip(lines, rows, strict=True):
        if line.sum != digest % (1 << 64):
            raise TrtlaError(
                f"line {number} of {source} is not what it was when the job began",
                "leave the file as it is, and start again with --force",
            )
        yield parse(line, {number: first})


def tasks(lines: Iterable[Line], survey: Survey) -> Iterator[Rows]:
    """Yield rows of number, offset, first line with the same custom_id, and digest."""
    rows: list[tuple[int, int, int, int]] = []
    for line in lines:
        digest = line.sum - (line.sum >> 63 << 64)  # as a signed integer
        rows.append((line.number, line.start, survey.first[line.number], digest))
        if len(rows) == _LINES:
            yield rows
            rows = []
    if rows:
        yield rows


def checked(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records; raise the error of one that ends the job."""
    for record in records:
        if record.number == _NO_LINE:
            code, message, hint = record.data.decode().split("\n", 2)
            kind = UsageError if int(code) == UsageError.exit_code else TrtlaError
            raise kind(message, hint or None)
        yield record
