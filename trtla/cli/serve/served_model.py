"""The model of `trtla serve` and `trtla batch`: its flags, opening, replicas on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtla.cli.shared import options as opt
from trtla.cli.shared.model import (
    CorpusFlags,
    block_reuse,
    check_model,
    is_trtllm,
    model_at,
    note_without_drafts,
    open_llm,
    sample_model,
    with_trtllm_settings,
)
from trtla.cli.shared.values import COUNT
from trtla.console import counted
from trtla.errors import UsageError
from trtla.settings.executor import TrtllmSettings
from trtla.settings.fields import parsed
from trtla.settings.serving import ReplicaSettings

if TYPE_CHECKING:
    from trtla.batch.journal import Record
    from trtla.batch.work import Task
    from trtla.formats.model import Model
    from trtla.llm.llm import LLM
    from trtla.replicas.cluster import Cluster
    from trtla.replicas.deployment import Plan
    from trtla.replicas.engine import Maker


_REUSE = "kv_cache_enable_block_reuse"


@dataclass(frozen=True)
class ServedModelFlags(CorpusFlags):
    """The flags of both commands as click parsed them."""

    force_greedy: bool
    reuse: bool
    """Share K/V blocks between requests with the same beginning."""
    replication: ReplicaSettings


Flags = TypeVar("Flags", bound=ServedModelFlags)

served_model_flags = opt.stack(
    opt.opening_flags(),
    opt.setting(
        "--max-batch-size",
        section="Model",
        type=COUNT,
        show_default="the engine's",
        help="Texts that are written at the same time, at most the engine's.",
    ),
    opt.switch(
        "--force-greedy",
        section="Model",
        help="Answer greedily whatever temperature, top_p and top_k requests have, for clients "
        "that always send them.",
    ),
    opt.setting(
        "--kv-cache-enable-block-reuse/--no-kv-cache-enable-block-reuse",
        section="Model",
        default=True,
        help="Share K/V blocks between requests with the same beginning; the texts stay the same.",
    ),
)
"""Flags for opening the model; block reuse takes the place of TensorRT-LLM's own setting."""

served_draft_flags = opt.stack(
    opt.drafter_flags,
    opt.corpus_flags,
    opt.draft_flags,
    opt.options_of(TrtllmSettings, "TensorRT-LLM engines", but=(_REUSE,)),
)
"""Flags for drafting, and TensorRT-LLM's settings."""


def checked(
    kind: type[Flags], params: dict[str, Any], note: Callable[[str], None], naming: str
) -> Flags:
    """Parse a command's flags, with their draft models among the options; `note` and `naming` as
    in `sample_model`."""
    folder = str(model_at(sample_model(note, naming, params["engine_dir"])).path)
    values = params | {"engine_dir": folder, "reuse": params[_REUSE]}
    del values[_REUSE]
    flags = check_model(parsed(kind, with_trtllm_settings(values)))
    note_without_drafts(note, folder, [flags.drafting])
    return flags


def served_name(served: str | None, named: str | None, flags: ServedModelFlags) -> str:
    """The model's name in requests and answers; by default that of its folder or file."""
    return served or Path(named or flags.engine_dir).resolve().name.removesuffix(".gguf")


def open_served(
    flags: ServedModelFlags, caller: str, model: Model | None = None, **more: Any
) -> LLM:
    """Open the model for requests of OpenAI's API.

    Args:
        caller: the command as a noun, for the refusal of a model without a tokenizer.
        model: the command's own description of the model, for threads of its process.
        more: arguments of `LLM` for the torch executor alone.
    """
    model = model or model_at(flags.engine_dir)
    torch_only = {} if model.is_trtllm else more
    llm = open_llm(flags, model, **torch_only, **block_reuse(flags, model, on=flags.reuse))
    llm.force_greedy = flags.force_greedy
    if llm.tokenizer is None:
        llm.close()
        raise UsageError(
            f"{flags.engine_dir} has no tokenizer files, and {caller} speaks text",
            "name their folder with --tokenizer-dir",
        )
    return llm


def check_replicas(flags: ServedModelFlags, *modules: str) -> None:
    """Refuse flags that replicas on Ray cannot serve; `modules` of Ray are used."""
    if is_trtllm(flags.engine_dir):
        raise UsageError(
            f"{flags.engine_dir} is a TensorRT-LLM engine, which --ray cannot replicate",
            "start one server for each GPU, or build with --backend torch",
        )
    from trtla.replicas.cluster import check_ray

    check_ray(*modules)


def replica_flags(flags: Flags, replicas: int) -> Flags:
    """A command's flags for a replica: its share of the threads, absolute paths."""
    from trtla.replicas.cluster import threads_each

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


def gpus_each(flags: ServedModelFlags, cluster: Cluster) -> int:
    """GPUs of each replica: one for each of its ranks, or none on CPUs."""
    device, options = flags.options.device.partition(":")[0], flags.options
    if device == "cpu" or (device == "auto" and not cluster.has_gpus):
        return 0
    return options.tp_size or options.lookahead_parallel or 1


@contextmanager
def replica_records(
    note: Callable[[str], None],
    flags: ServedModelFlags,
    task: Task,
    caller: str,
) -> Iterator[Iterator[Record]]:
    """The records of a job's lines from replicas, which end with the block; `caller` as in
    `open_served`."""
    from trtla.batch.ray_data import Pool, Share, ray_records
    from trtla.replicas.cluster import Cluster, quiet
    from trtla.replicas.deployment import check_room

    number = flags.replication.range[0]
    each = replica_flags(flags, number)
    threads = each.options.threads or 1
    model = model_at(flags.engine_dir).open(None)
    batch_size = model.batch_size(flags.options.max_batch_size)
    opening = partial(open_served, each, caller)
    share = Share(opening, task.source.resolve(), task.labelling)
    cluster = Cluster(flags.replication.ray_address, threads * number)
    try:
        gpus = gpus_each(flags, cluster)
        check_room(number, threads, gpus)
        note(f"note: runs on {counted(number, 'replica')} of {counted(threads, 'thread')}")
        pool = Pool(number, threads, gpus, batch_size)
        with quiet():
            yield task.kept(ray_records(task.left(), task.survey, share, pool))
    finally:
        cluster.close()


def replicas_opener(
    flags: Flags, open_model: Callable[[Flags], LLM], log: Callable[[str], None]
) -> Callable[[], Maker]:
    """Return the function that opens replicas for the server, each with the flags' model."""
    check_replicas(flags, "ray.serve")
    from trtla.formats.engine import model_digest
    from trtla.replicas.cluster import Cluster
    from trtla.replicas.deployment import Plan
    from trtla.replicas.engine import Maker, open_replicas
    from trtla.replicas.replica import open_same

    replication, model = flags.replication, model_at(flags.engine_dir)
    each = replica_flags(flags, replication.range[1])
    threads = each.options.threads or 1

    def plan(maker: Maker, cluster: Cluster) -> Plan:
        size = maker.engine.batch_size(flags.options.max_batch_size)
        opening = partial(open_same, partial(open_model, each), model_digest(maker.engine))
        return Plan(opening, replication.range, threads, size, gpus_each(flags, cluster))

    def opened() -> Maker:
        maker = Maker(model, flags.options)
        maker.force_greedy = flags.force_greedy
        connect = partial(Cluster, replication.ray_address, threads * replication.range[1])
        return open_replicas(maker, plan, connect, log)

    return opened
