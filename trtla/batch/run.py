"""A job from where it is to its end: decoding, keeping what is done, counting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trtla.batch.job import Job
from trtla.batch.journal import Journal
from trtla.batch.lines import Ask, Reader, Survey, parse
from trtla.batch.work import Decoding, Labelling
from trtla.console import Progress
from trtla.errors import TrtlaError
from trtla.llm.llm import LLM
from trtla.runtime.stats import tokens_per_step


@dataclass(slots=True)
class Pace:
    """How fast this process is."""

    before: int
    """Lines that were done when it began."""
    started: float
    tokens: int = 0
    """Output tokens of the lines that it has finished."""

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.started

    @property
    def tokens_per_s(self) -> float | None:
        """None: nothing was written."""
        return self.tokens / self.seconds if self.tokens else None


@dataclass(frozen=True, slots=True)
class Figures:
    """What this process did for a job."""

    before: int
    seconds: float
    tokens_per_s: float | None
    tokens_per_step: float | None
    """S; None: nothing was decoded."""


@dataclass(frozen=True, slots=True)
class Input:
    """A file that was looked at."""

    path: Path
    survey: Survey


def decode_lines(
    job: Job,
    journal: Journal,
    given: Input,
    llm: LLM,
    pace: Pace,
    model: str,
    progress: Progress,
    log: Callable[[str], None],
) -> Figures:
    """Do all lines that the journal does not have.

    Args:
        model: its name in answers.
        log: takes sentences about what goes wrong.

    Raises:
        TrtlaError: the input is another one by now, or the model has failed.
    """
    labelling = Labelling(job.identity.key, job.created, model)
    decoding, total = Decoding(llm, labelling, log), given.survey.count
    progress(journal.counts.done, total)
    for record in decoding.records(_left(given, journal)):
        journal.add(record)
        pace.tokens += record.output_tokens
        progress(journal.counts.done, total)
    stats = llm.stats()
    gained = tokens_per_step(stats.steps, stats.accepted) if pace.tokens else None
    return Figures(pace.before, pace.seconds, pace.tokens_per_s, gained)


def _left(given: Input, journal: Journal) -> Iterator[Ask]:
    """The lines that are not done."""
    reader, survey = Reader(given.path), given.survey
    for line in reader:
        if line.number > survey.last:
            break
        if line.number not in journal:
            yield parse(line, survey.first)
    if reader.digest != survey.digest:
        raise TrtlaError(
            f"{given.path} was changed while it was read",
            "leave it as it is, and begin anew with --force",
        )
