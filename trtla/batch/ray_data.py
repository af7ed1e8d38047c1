"""A job's lines on replicas by Ray Data: its actors hold the model, its tasks are a few lines.

A task holds its lines' offsets and digests; the actor reads them, and returns records as in a
single process. Ray Data may repeat a task if an actor is lost: the answers are the same, and the
journal takes one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from trtla.batch.journal import Record
from trtla.batch.lines import Line, LineRequest, Survey, lines_at, parse
from trtla.batch.work import Decoding, Labelling
from trtla.errors import TrtlaError, UsageError, as_trtla_error
from trtla.llm.llm import LLM

_LINES = 4
"""Lines of a task: few, since an interrupted task is repeated."""
_AHEAD = 2
"""Texts of an actor for each slot in its batch."""
_NO_LINE = 0
"""In place of a line's number: the record holds the error that ends the job."""
_ARRAY = "data"  # Ray Data's name of the column of arrays
_COLUMNS = tuple(part.name for part in fields(Record))
Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Share:
    """The arguments of every actor."""

    open_model: Callable[[], LLM]
    source: Path
    labelling: Labelling


@dataclass(frozen=True, slots=True)
class Pool:
    """The number of actors, and the resources of each."""

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

    def __call__(self, tasks: Batch) -> Batch:
        if self._llm is None:
            return _table([_failed(self._problem)])
        try:
            requests = list(_requests(self._share.source, tasks[_ARRAY].tolist()))
            work = Decoding(self._llm, self._share.labelling, print)
            return _table(list(work.records(requests)))
        except Exception as error:
            return _table([_failed(as_trtla_error(error))])


def _requests(source: Path, rows: list[list[int]]) -> Iterator[LineRequest]:
    lines = lines_at(source, ((number, start) for number, start, _, _ in rows))
    for line, (number, _, first, digest) in zip(lines, rows, strict=True):
        if line.sum != digest % (1 << 64):
            raise TrtlaError(
                f"line {number} of {source} is not what it was when the job began",
                "leave the file as it is, and start again with --force",
            )
        yield parse(line, {number: first})


def _failed(problem: TrtlaError | None) -> Record:
    assert problem is not None
    report = f"{problem.exit_code}\n{problem.message}\n{problem.hint or ''}"
    return Record(_NO_LINE, True, 0, 0, report.encode())


def _table(records: list[Record]) -> Batch:
    numbers = [name for name in _COLUMNS if name != _ARRAY]
    table: Batch = {
        name: np.array([getattr(record, name) for record in records]) for name in numbers
    }
    table[_ARRAY] = np.empty(len(records), dtype=object)
    table[_ARRAY][:] = [record.data for record in records]
    return table


def ray_records(
    lines: Iterable[Line], survey: Survey, share: Share, pool: Pool
) -> Iterator[Record]:
    """Yield the records of lines as they finish."""
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
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # Ray has changed it
    for batch in answers.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
        yield from _records(batch)


def _tasks(lines: Iterable[Line], survey: Survey) -> Iterator[Any]:
    """Yield rows of number, offset, first line with the same custom_id, and digest."""
    rows: list[tuple[int, int, int, int]] = []
    for line in lines:
        digest = line.sum - (line.sum >> 63 << 64)  # as a signed integer
        rows.append((line.number, line.start, survey.first[line.number], digest))
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
