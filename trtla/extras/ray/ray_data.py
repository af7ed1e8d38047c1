"""Tasks on replicas by Ray Data: its actors hold the model, its tasks are a few integers.

Ray Data may repeat a task if an actor is lost: the results are the same, and the caller takes one.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from trtla.errors import TrtlaError, as_trtla_error
from trtla.extras.ray.cluster import Pool
from trtla.llm.llm import LLM

_ARRAY = "data"  # Ray Data's name of the column of arrays
Task = Sequence[tuple[int, ...]]
"""Rows of integers, which name a few pieces of work."""
Work = Callable[[LLM, Task], list[Any]]


class Actor:
    """A model that does tasks; errors are its results, since Ray would repeat what raises them."""

    def __init__(self, work: Work, open_model: Callable[[], LLM]) -> None:
        self._work = work
        self._llm: LLM | TrtlaError
        try:
            self._llm = open_model()
        except Exception as error:
            self._llm = as_trtla_error(error)

    def __call__(self, tasks: dict[str, Any]) -> dict[str, Any]:
        results: list[Any] | Exception
        try:
            if isinstance(self._llm, TrtlaError):
                raise self._llm
            results = self._work(self._llm, tasks[_ARRAY].tolist())
        except Exception as error:
            results = as_trtla_error(error)
        return {_ARRAY: np.array([pickle.dumps(results)], dtype=object)}


def ray_results(
    tasks: Iterable[Task], work: Work, open_model: Callable[[], LLM], pool: Pool, together: int
) -> Iterator[Any]:
    """Yield the results of tasks as they finish; a replica does so many together."""
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext

    DataContext.get_current().enable_progress_bars = False
    arrays = [np.array(task, np.int64) for task in tasks]
    actors = ActorPoolStrategy(
        min_size=min(pool.least, len(arrays)),
        max_size=min(pool.most, len(arrays)),
        max_concurrent_calls_per_actor=together,
        max_tasks_in_flight_per_actor=together,
        enable_true_multi_threading=True,
    )
    answers = ray.data.from_numpy_refs([ray.put(array) for array in arrays]).map_batches(
        Actor,
        batch_size=None,
        compute=actors,
        fn_constructor_args=(work, open_model),
        num_cpus=pool.threads / together,
        num_gpus=pool.gpus,
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # Ray has changed it
    for table in answers.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
        for data in table[_ARRAY]:
            results = pickle.loads(data)  # noqa: S301  from an actor
            if isinstance(results, TrtlaError):
                raise results
            yield from results
