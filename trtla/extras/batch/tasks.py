"""A job's lines as tasks for other processes that hold the model: the numbers of a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from trtla.errors import TrtlaError
from trtla.extras.batch.journal import Record
from trtla.extras.batch.lines import read_lines
from trtla.extras.batch.work import Decoding, Labelling
from trtla.llm.llm import LLM

_LINES = 4
"""Lines of a task: few, since an interrupted task is repeated."""
Rows = Sequence[tuple[int, ...]]


_lines_of = lru_cache(maxsize=1)(read_lines)


@dataclass(frozen=True, slots=True)
class LineShare:
    """The facts of a job that every process needs."""

    source: Path
    digest: str
    """The digest of the input when the job began."""
    labelling: Labelling
    most_rows: int = _LINES

    def results(self, llm: LLM, rows: Rows) -> list[Record]:
        """Return the records of a task's lines."""
        lines = _lines_of(self.source)
        if lines.digest != self.digest:
            raise TrtlaError(f"{self.source} was changed meanwhile", "start again with --force")
        requests = [lines.parse(number) for (number,) in rows]
        return list(Decoding(llm, self.labelling, print).records(requests))


def tasks(numbers: Iterable[int]) -> Iterator[Rows]:
    """Yield tasks of a few lines each, one row for a line."""
    rows = ((number,) for number in numbers)
    while task := list(islice(rows, _LINES)):
        yield task
