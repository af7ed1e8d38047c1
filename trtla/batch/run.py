"""A job from where it is to its end: decoding, keeping what is done, counting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trtla.batch.job import Job
from trtla.batch.journal import Counts, Journal, Record
from trtla.batch.lines import Line, Reader, Survey, parse
from trtla.batch.work import Decoding, Labelling
from trtla.errors import TrtlaError
from trtla.llm.llm import LLM


@dataclass(frozen=True, slots=True)
class Figures:
    """What this process did for a job."""

    before: int
    """Lines that were done when it began."""
    seconds: float
    tokens_per_s: float | None
    """None: nothing was written."""


@dataclass(slots=True)
class Pace:
    """How fast this process is."""

    before: int
    """Lines that were done when it began."""
    tokens: int = 0
    """Output tokens of the lines that it has finished."""
    _started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._started

    @property
    def tokens_per_s(self) -> float | None:
        """None: nothing was written."""
        return self.tokens / self.seconds if self.tokens else None

    def described(self, counts: Counts) -> str:
        """What stands behind the count of lines."""
        speed = self.tokens_per_s
        return f"{counts.failed} failed" + ("" if speed is None else f", {speed:.1f} tokens/s")

    def figures(self) -> Figures:
        """All of it, when the lines are done."""
        return Figures(self.before, self.seconds, self.tokens_per_s)


@dataclass(frozen=True, slots=True)
class Task:
    """A job, what is done of it, and the file that it is of."""

    job: Job
    journal: Journal
    source: Path
    survey: Survey
    model: str
    """Its name in answers."""

    @property
    def labelling(self) -> Labelling:
        """What its answers have in common."""
        return Labelling(self.job.identity.key, self.job.created, self.model)

    def records(self, llm: LLM, log: Callable[[str], None]) -> Iterator[Record]:
        """Do the lines that the journal does not have; each is in it when it comes.

        Args:
            log: takes sentences about what goes wrong.

        Raises:
            TrtlaError: the input is another one by now, the disk is full, or the model has failed.
        """
        asked = (parse(line, self.survey.first) for line in self.left())
        return self.kept(Decoding(llm, self.labelling, log).records(asked))

    def kept(self, records: Iterable[Record]) -> Iterator[Record]:
        """Put records into the journal; of a line that comes twice the first."""
        for record in records:
            if record.number not in self.journal:
                self.journal.add(record)
                yield record

    def left(self) -> Iterator[Line]:
        """The lines that are not done.

        Raises:
            TrtlaError: the input is another one by now.
        """
        changed = TrtlaError(
            f"{self.source} was changed while it was read",
            "leave it as it is, and begin anew with --force",
        )
        reader, found = Reader(self.source), self.survey
        for line in reader:
            # at once: what is in the journal is taken for answers to the lines of the survey
            if line.number > found.last or line.sum != found.sums[line.number]:
                raise changed
            if line.number not in self.journal:
                yield line
        if reader.digest != found.digest:
            raise changed
