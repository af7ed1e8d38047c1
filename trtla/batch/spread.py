"""A job's lines over replicas, by Ray Data: its actors hold the model, its tasks are a few lines.

A task says where its lines are, and their sums; who does it reads them. What comes back are
records, as they are in one process. Ray Data may do a task twice, where an actor is lost: both
times the answers are the same, and the journal takes one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from trtla.batch.journal import Record
from trtla.batch.lines import Ask, Line, Survey, lines_at, parse
from trtla.batch.work import Decoding, Labelling
from trtla.errors import TrtlaError, UsageError, as_trtla_error
from trtla.llm.llm import LLM

_LINES = 4
"""Lines of a task: few, since what a kill interrupts is done again."""
_AHEAD = 2
"""Texts that an actor has for each place in its batch."""
_NO_LINE = 0
"""In place of a line's number: the record is why the job cannot go on."""
_PLACE = "data"  # as Ray Data calls the column of arrays
_COLUMNS = tuple(one.name for one in fields(Record))
Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Share:
    """What every actor is given."""

    open_model: Callable[[], LLM]
    source: Path
    labelling: Labelling


@dataclass(frozen=True, slots=True)
class Pool:
    """How many actors, and what each takes."""

    replicas: int
    threads: int
    gpus: int
    batch_size: int


class Answers:
    """An actor. A model that does not open is reported with the first task: Ray would retry it."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._llm: LLM | None = None
        self._problem: TrtlaError | None = None
        try:
            self._llm = share.open_model()
        except Exception as error:
            self._problem = as_trtla_error(error)

    def __call__(self, places: Batch) -> Batch:
        if self._llm is None:
            return _table([_stop(self._problem)])
        try:
            requests = list(_asks(self._share.source, places[_PLACE].tolist()))
            work = Decoding(self._llm, self._share.labelling, print)
            return _table(list(work.records(requests)))
        except Exception as error:
            return _table([_stop(as_trtla_error(error))])


def _asks(source: Path, places: list[list[int]]) -> Iterator[Ask]:
    lines = lines_at(source, ((number, start) for number, start, _, _ in places))
    for line, (number, _, first, found) in zip(lines, places, strict=True):
        if line.sum != found % (1 << 64):
            raise TrtlaError(
                f"line {number} of {source} is not what it was when the job began",
                "leave the file as it is, and begin anew with --force",
            )
        yield parse(line, {number: first})


def _stop(problem: TrtlaError | None) -> Record:
    assert problem is not None
    report = f"{problem.exit_code}\n{problem.message}\n{problem.hint or ''}"
    return Record(_NO_LINE, True, 0, 0, report.encode())


def _table(records: list[Record]) -> Batch:
    numbers = [name for name in _COLUMNS if name != _PLACE]
    table: Batch = {name: np.array([getattr(one, name) for one in records]) for name in numbers}
    table[_PLACE] = np.empty(len(records), dtype=object)
    table[_PLACE][:] = [one.data for one in records]
    return table


def spread(lines: Iterable[Line], survey: Survey, share: Share, pool: Pool) -> Iterator[Record]:
    """The records of lines, as they come."""
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext

    DataContext.get_current().enable_progress_bars = False

    tasks = list(_tasks(lines, survey))
    together = max(1, _AHEAD * pool.batch_size // _LINES)
    actors = ActorPoolStrategy(
        size=min(pool.replicas, len(tasks)),
        max_concurrent_calls_per_actor=together,
        max_tasks_in_flight_per_actor=together,
        enable_true_multi_threading=True,
    )
    answers = ray.data.from_numpy_refs([ray.put(task) for task in tasks]).map_batches(
        Answers,
        batch_size=None,
        compute=actors,
        fn_constructor_args=(share,),
        num_cpus=pool.threads / together,
        num_gpus=pool.gpus,
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # Ray has set it meanwhile
    for batch in answers.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
        yield from _records(batch)


def _tasks(lines: Iterable[Line], survey: Survey) -> Iterator[Any]:
    """Number, place, first line with its custom_id, and sum of each line."""
    rows: list[tuple[int, int, int, int]] = []
    for line in lines:
        found = line.sum - (line.sum >> 63 << 64)  # as an integer with a sign
        rows.append((line.number, line.start, survey.first[line.number], found))
        if len(rows) == _LINES:
            yield np.array(rows, np.int64)
            rows = []
    if rows:
        yield np.array(rows, np.int64)


def _records(table: Batch) -> Iterator[Record]:
    for row in zip(*(table[name].tolist() for name in _COLUMNS), strict=True):
        record = Record(*row)
        if record.number == _NO_LINE:
            code, message, hint = record.data.decode().split("\n", 2)
            kind = UsageError if int(code) == UsageError.exit_code else TrtlaError
            raise kind(message, hint or None)
        yield record
