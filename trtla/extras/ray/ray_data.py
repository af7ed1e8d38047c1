"""Tasks on replicas by Ray Data: its actors hold the model, its tasks are a few integers.

Ray Data may repeat a task if an actor is lost: the results are the same, and the caller takes one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from trtla.errors import TrtlaError, as_trtla_error
from trtla.llm.llm import LLM

_AHEAD = 2
"""Rows of an actor for each slot in its batch."""
_ARRAY = "data"  # Ray Data's name of the column of arrays
_Table = dict[str, Any]
Result = TypeVar("Result")
Task = Sequence[tuple[int, ...]]
"""Rows of integers, which name a few pieces of work."""


class Share(Protocol[Result]):
    """The work that every actor does with tasks.

    A result is a dataclass of numbers, and of bytes in its field `data`.
    """

    kind: type[Result]
    most_rows: int
    """Rows of a task, at most."""

    def results(self, llm: LLM, rows: Task) -> list[Result]:
        """Return the results of a task."""

    def failure(self, problem: TrtlaError) -> Result:
        """Return the result that ends the work with an error."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The number of actors, and the resources of each."""

    replicas: int
    threads: int
    gpus: int
    batch_size: int


class Actor(Generic[Result]):
    """An actor. A model that does not open is reported with the first task: Ray would retry it."""

    def __init__(self, share: Share[Result], open_model: Callable[[], LLM]) -> None:
        self._share = share
        self._llm: LLM | None = None
        self._problem: TrtlaError | None = None
        try:
            self._llm = open_model()
        except Exception as error:
            self._problem = as_trtla_error(error)

    def __call__(self, tasks: _Table) -> _Table:
        if self._llm is None:
            assert self._problem is not None
            return _table([self._share.failure(self._problem)], self._share.kind)
        try:
            results = self._share.results(self._llm, tasks[_ARRAY].tolist())
            return _table(results, self._share.kind)
        except Exception as error:
            failure = self._share.failure(as_trtla_error(error))
            return _table([failure], self._share.kind)


def _columns(kind: Any) -> list[str]:
    return [part.name for part in fields(kind)]


def _table(results: Sequence[Any], kind: Any) -> _Table:
    numbers = [name for name in _columns(kind) if name != _ARRAY]
    table: _Table = {
        name: np.array([getattr(result, name) for result in results]) for name in numbers
    }
    table[_ARRAY] = np.empty(len(results), dtype=object)
    table[_ARRAY][:] = [result.data for result in results]
    return table


def ray_results(
    tasks: Iterable[Task], share: Share[Result], open_model: Callable[[], LLM], pool: Pool
) -> Iterator[Result]:
    """Yield the results of tasks as they finish."""
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext

    DataContext.get_current().enable_progress_bars = False

    arrays = [np.array(task, np.int64) for task in tasks]
    together = max(1, _AHEAD * pool.batch_size // share.most_rows)
    actors = ActorPoolStrategy(
        size=min(pool.replicas, len(arrays)),
        max_concurrent_calls_per_actor=together,
        max_tasks_in_flight_per_actor=together,
        enable_true_multi_threading=True,
    )
    results = ray.data.from_numpy_refs([ray.put(array) for array in arrays]).map_batches(
        Actor,
        batch_size=None,
        compute=actors,
        fn_constructor_args=(share, open_model),
        num_cpus=pool.threads / together,
        num_gpus=pool.gpus,
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # Ray has changed it
    columns = _columns(share.kind)
    for table in results.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
        for row in zip(*(table[name].tolist() for name in columns), strict=True):
            yield share.kind(*row)
