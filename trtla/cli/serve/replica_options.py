"""`--ray`: from flags to replicas of the model; the work is in trtla.replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trtla.cli.serve.model_options import AnsweringFlags, open_answering
from trtla.cli.shared.model import is_trtllm
from trtla.console import counted
from trtla.errors import UsageError
from trtla.settings.replicas import ReplicaSettings

if TYPE_CHECKING:
    from trtla.batch.journal import Record
    from trtla.batch.run import Task
    from trtla.llm.llm import LLM
    from trtla.replicas.cluster import Cluster
    from trtla.replicas.deployment import Plan
    from trtla.replicas.engine import Maker
    from trtla.serve.engine import NewEngine

Flags = TypeVar("Flags", bound=AnsweringFlags)
_USES_GPU = {"cuda": True, "cpu": False}


def check_spread(given: AnsweringFlags, *modules: str) -> None:
    """Refuse what cannot be spread over replicas here.

    Args:
        modules: parts of Ray that are used.

    Raises:
        UsageError: the engine is TensorRT-LLM's, or something cannot be said of several replicas.
        TrtlaError: Ray is not installed, or is of another release.
    """
    if is_trtllm(Path(given.engine_dir)):
        raise UsageError(
            f"{given.engine_dir} is a TensorRT-LLM engine, which --ray does not spread",
            "start one server for each GPU, or build with --backend torch",
        )
    from trtla.replicas.cluster import check_ray

    check_ray(*modules)


def spread_out(given: Flags, replicas: int) -> Flags:
    """A command's flags as a replica has them: its share of the threads, paths from anywhere."""
    from trtla.replicas.cluster import threads_each

    own = given.options.tokenizer_dir
    options = replace(
        given.options,
        threads=threads_each(replicas, given.options.threads),
        tokenizer_dir=own and _absolute(own),
        corpus=[_absolute(path) for path in given.options.corpus],
    )
    return replace(given, engine_dir=_absolute(given.engine_dir), options=options)


def _absolute(path: str | Path) -> str:
    """A path from anywhere; names on the hub stay."""
    return str(Path(path).resolve() if Path(path).exists() else path)


def gpus_each(given: AnsweringFlags, cluster: Cluster) -> int:
    """GPUs of each replica: one for each of its ranks, none on CPUs."""
    found = _USES_GPU.get(given.options.device.partition(":")[0])
    uses = cluster.has_gpus if found is None else found
    return (given.options.tp_size or given.options.lookahead_parallel or 1) if uses else 0


@contextmanager
def spread_records(
    note: Callable[[str], None],
    given: AnsweringFlags,
    models: list[str],
    settings: ReplicaSettings,
    task: Task,
    who: str,
) -> Iterator[Iterator[Record]]:
    """The records of a job's lines, done by replicas that end with the block; `who` as in
    `open_answering`."""
    from trtla.batch.spread import Pool, Share, spread
    from trtla.llm.open import open_model
    from trtla.replicas.cluster import Cluster, quiet
    from trtla.replicas.deployment import check_room

    number = settings.range[0]
    each = spread_out(given, number)
    threads = each.options.threads or 1
    batch_size = open_model(Path(given.engine_dir), None).batch_size(given.options.max_batch_size)
    opening = partial(open_answering, each, models, who)
    share = Share(opening, task.source.resolve(), task.labelling)
    cluster = Cluster(settings.ray_address, threads * number)
    try:
        gpus = gpus_each(given, cluster)
        check_room(number, threads, gpus)
        note(f"note: runs on {counted(number, 'replica')} of {counted(threads, 'thread')}")
        pool = Pool(number, threads, gpus, batch_size)
        with quiet():
            yield task.kept(spread(task.left(), task.survey, share, pool))
    finally:
        cluster.close()


def new_replica_engine(
    given: Flags,
    models: list[str],
    spread: ReplicaSettings,
    open_model: Callable[[Flags, list[str]], LLM],
) -> NewEngine:
    """What decodes for the server on replicas.

    Args:
        open_model: opens the model of flags and draft models, in a replica.

    Raises:
        UsageError: see `check_spread`.
        TrtlaError: likewise.
    """
    check_spread(given, "ray.serve")
    from trtla.formats.engine import model_digest
    from trtla.replicas.cluster import Cluster
    from trtla.replicas.deployment import Plan
    from trtla.replicas.engine import Maker, ReplicaEngine
    from trtla.replicas.replica import open_same

    each = spread_out(given, spread.range[1])
    threads = each.options.threads or 1

    def plan(maker: Maker, cluster: Cluster) -> Plan:
        size = maker.engine.batch_size(given.options.max_batch_size)
        opening = partial(open_same, partial(open_model, each, models), model_digest(maker.engine))
        return Plan(opening, spread.range, threads, size, gpus_each(given, cluster))

    def new_maker() -> Maker:
        maker = Maker(given.engine_dir, given.options)
        maker.force_greedy = given.force_greedy
        return maker

    connect = partial(Cluster, spread.ray_address, threads * spread.range[1])
    return partial(ReplicaEngine, new_maker, plan, connect)
