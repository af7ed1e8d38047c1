"""`--ray` of trtla serve and trtla batch: its flags, the refusals, and what opens the replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtla.cli.serve.served_model import Flags, ServedModelFlags
from trtla.cli.shared.model import is_trtllm, model_at
from trtla.cli.shared.options import options_of
from trtla.console import counted
from trtla.errors import UsageError
from trtla.extras.ray.settings import ReplicaSettings
from trtla.settings.fields import declared, parsed

if TYPE_CHECKING:
    from trtla.extras.ray.cluster import Cluster
    from trtla.extras.ray.deployment import Plan
    from trtla.extras.ray.engine import Maker
    from trtla.extras.ray.ray_data import Share, Task
    from trtla.llm.llm import LLM

Result = TypeVar("Result")


def _taken(params: dict[str, Any]) -> ReplicaSettings:
    """Take the flags of replicas out of a command's parameters."""
    names = [item.flag for item in declared(ReplicaSettings).values() if item.flag in params]
    return parsed(ReplicaSettings, {name: params.pop(name) for name in names})


@dataclass(frozen=True, slots=True)
class ServeReplicas:
    """Replicas behind `trtla serve`."""

    settings: ReplicaSettings
    options = options_of(ReplicaSettings, "Replicas")

    @staticmethod
    def taken(params: dict[str, Any]) -> ServeReplicas | None:
        """Take the flags out of the command's parameters; None: they ask for no replicas."""
        settings = _taken(params)
        return ServeReplicas(settings) if settings.ray else None

    @property
    def text(self) -> str:
        """Their number, as it stands before the description of one."""
        least, most = self.settings.range
        number = counted(least, "replica") if least == most else f"{least} to {most} replicas"
        return f"{number} of "

    def note(self, host: str) -> str:
        """Return the warning for a server on a loopback address."""
        return f"{host} is the server's alone: Ray's ports are on all addresses"

    def opener(
        self, flags: Flags, open_model: Callable[[Flags], LLM], log: Callable[[str], None]
    ) -> Callable[[], Maker]:
        """Return the function that opens replicas for the server, each with the flags' model."""
        _check(flags, "ray.serve")
        from trtla.extras.ray.cluster import Cluster
        from trtla.extras.ray.deployment import Plan
        from trtla.extras.ray.engine import Maker, open_replicas
        from trtla.extras.ray.replica import open_same
        from trtla.formats.engine import model_digest

        replication, model = self.settings, model_at(flags.engine_dir)
        each = _replica_flags(flags, replication.range[1])
        threads = each.options.threads or 1

        def plan(maker: Maker, cluster: Cluster) -> Plan:
            size = maker.engine.batch_size(flags.options.max_batch_size)
            opening = partial(open_same, partial(open_model, each), model_digest(maker.engine))
            return Plan(opening, replication.range, threads, size, _gpus_each(flags, cluster))

        def opened() -> Maker:
            maker = Maker(model, flags.options)
            maker.force_greedy = flags.force_greedy
            connect = partial(Cluster, replication.ray_address, threads * replication.range[1])
            return open_replicas(maker, plan, connect, log)

        return opened


@dataclass(frozen=True, slots=True)
class BatchReplicas:
    """Replicas that answer the lines of `trtla batch`."""

    settings: ReplicaSettings
    options = options_of(ReplicaSettings, "Replicas", but=("autoscale",))

    @staticmethod
    def taken(params: dict[str, Any]) -> BatchReplicas | None:
        """Take the flags out of the command's parameters; None: they ask for no replicas."""
        settings = _taken(params)
        return BatchReplicas(settings) if settings.ray else None

    def check(self, flags: ServedModelFlags) -> None:
        """Refuse flags that replicas cannot serve."""
        if flags.save_corpus is not None:
            raise UsageError(
                "--save-corpus needs one process: each replica learns texts of its own",
                "omit --ray or --save-corpus",
            )
        _check(flags, "ray.data")

    @contextmanager
    def results(
        self,
        note: Callable[[str], None],
        flags: Flags,
        open_model: Callable[[Flags], LLM],
        tasks: Iterable[Task],
        share: Share[Result],
    ) -> Iterator[Iterator[Result]]:
        """The results of tasks from replicas, which end with the block."""
        from trtla.extras.ray.cluster import Cluster, quiet
        from trtla.extras.ray.deployment import check_room
        from trtla.extras.ray.ray_data import Pool, ray_results

        number = self.settings.range[0]
        each = _replica_flags(flags, number)
        threads = each.options.threads or 1
        model = model_at(flags.engine_dir).open(None)
        batch_size = model.batch_size(flags.options.max_batch_size)
        cluster = Cluster(self.settings.ray_address, threads * number)
        try:
            gpus = _gpus_each(flags, cluster)
            check_room(number, threads, gpus)
            note(f"note: runs on {counted(number, 'replica')} of {counted(threads, 'thread')}")
            pool = Pool(number, threads, gpus, batch_size)
            with quiet():
                yield ray_results(tasks, share, partial(open_model, each), pool)
        finally:
            cluster.close()


def _check(flags: ServedModelFlags, *modules: str) -> None:
    """Refuse flags that replicas on Ray cannot serve; `modules` of Ray are used."""
    if is_trtllm(flags.engine_dir):
        raise UsageError(
            f"{flags.engine_dir} is a TensorRT-LLM engine, which --ray cannot replicate",
            "start one server for each GPU, or build with --backend torch",
        )
    from trtla.extras.ray.cluster import check_ray

    check_ray(*modules)


def _replica_flags(flags: Flags, replicas: int) -> Flags:
    """A command's flags for a replica: its share of the threads, absolute paths."""
    from trtla.extras.ray.cluster import threads_each

    def absolute(path: str | Path) -> str:  # names on the hub stay
        return str(Path(path).resolve() if Path(path).exists() else path)

    shared = flags.options
    options = replace(
        shared,
        threads=threads_each(replicas, shared.threads),
        tokenizer_dir=shared.tokenizer_dir and absolute(shared.tokenizer_dir),
        corpus=[absolute(path) for path in shared.corpus],
    )
    return replace(flags, engine_dir=absolute(flags.engine_dir), options=options)


def _gpus_each(flags: ServedModelFlags, cluster: Cluster) -> int:
    """GPUs of each replica: one for each of its ranks, or none on CPUs."""
    device, options = flags.options.device.partition(":")[0], flags.options
    if device == "cpu" or (device == "auto" and not cluster.has_gpus):
        return 0
    return options.tp_size or options.lookahead_parallel or 1
