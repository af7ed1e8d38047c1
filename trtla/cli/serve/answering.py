"""The model that `trtla serve` and `trtla batch` answer with: flags, opening, replicas on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtla.cli.shared.model import (
    CorpusFlags,
    check_model,
    is_trtllm,
    open_llm,
)
from trtla.cli.shared.options import (
    corpus_flags,
    draft_flags,
    drafter_flags,
    opening_flags,
    options_of,
    setting,
    stack,
    switch,
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
    from trtla.llm.llm import LLM
    from trtla.replicas.cluster import Cluster
    from trtla.replicas.deployment import Plan
    from trtla.replicas.engine import Maker
    from trtla.serve.generation import NewEngine


_REUSE = "kv_cache_enable_block_reuse"


@dataclass(frozen=True)
class AnsweringFlags(CorpusFlags):
    """The flags of both commands as click parsed them."""

    force_greedy: bool
    reuse: bool
    """Share K/V blocks between requests with the same beginning."""


Flags = TypeVar("Flags", bound=AnsweringFlags)

answering_model_flags = stack(
    opening_flags,
    setting(
        "--max-batch-size",
        section="Model",
        type=COUNT,
        show_default="the engine's",
        help="Texts that are written at the same time, at most the engine's.",
    ),
    switch(
        "--force-greedy",
        section="Model",
        help="Answer greedily whatever temperature, top_p and top_k requests have, for clients "
        "that always send them.",
    ),
    setting(
        "--kv-cache-enable-block-reuse/--no-kv-cache-enable-block-reuse",
        section="Model",
        default=True,
        help="Share K/V blocks between requests with the same beginning; the texts stay the same.",
    ),
)
"""How the model is opened; block reuse is in place of the one among TensorRT-LLM's settings."""

answering_draft_flags = stack(
    drafter_flags,
    corpus_flags,
    draft_flags,
    options_of(TrtllmSettings, "TensorRT-LLM engines", but=(_REUSE,)),
)
"""What drafts for the requests, and TensorRT-LLM's settings."""


def answering_folder(note: Callable[[str], None], naming: str, named: str | None) -> str:
    """The folder of the named model; without a name as in `sample_model`."""
    from trtla.cli.shared.model import sample_model
    from trtla.formats.gguf.folder import model_folder

    return str(model_folder(sample_model(note, naming, named)))


def checked(kind: type[Flags], params: Mapping[str, Any]) -> Flags:
    """A command's flags, their draft models among the options."""
    others = {name: value for name, value in params.items() if name != _REUSE}
    return check_model(parsed(kind, {**others, "reuse": params[_REUSE]}))


def answering_name(served: str | None, named: str | None, flags: AnsweringFlags) -> str:
    """The model's name in requests and answers; without one its folder's or file's."""
    return served or Path(named or flags.engine_dir).resolve().name.removesuffix(".gguf")


def open_answering(flags: AnsweringFlags, who: str, **more: Any) -> LLM:
    """The model that requests of OpenAI's API are put to.

    Args:
        who: what speaks text, for the refusal of a model without a tokenizer.
        more: arguments of `LLM` for the torch executor alone.
    """
    more |= {"block_reuse": flags.reuse}
    if is_trtllm(flags.engine_dir):
        more = {"trtllm": replace(flags.options.trtllm, kv_cache_enable_block_reuse=flags.reuse)}
    llm = open_llm(flags, **more)
    llm.force_greedy = flags.force_greedy
    if llm.tokenizer is None:
        llm.close()
        raise UsageError(
            f"{flags.engine_dir} has no tokenizer files, and {who} speaks text",
            "name their folder with --tokenizer-dir",
        )
    return llm


def check_spread(flags: AnsweringFlags, *modules: str) -> None:
    """Refuse what cannot be spread over replicas here.

    Args:
        modules: parts of Ray that are used.
    """
    if is_trtllm(flags.engine_dir):
        raise UsageError(
            f"{flags.engine_dir} is a TensorRT-LLM engine, which --ray does not spread",
            "start one server for each GPU, or build with --backend torch",
        )
    from trtla.replicas.cluster import check_ray

    check_ray(*modules)


def spread_out(flags: Flags, replicas: int) -> Flags:
    """A command's flags as a replica has them: its share of the threads, paths from anywhere."""
    from trtla.replicas.cluster import threads_each

    own = flags.options.tokenizer_dir
    options = replace(
        flags.options,
        threads=threads_each(replicas, flags.options.threads),
        tokenizer_dir=own and _absolute(own),
        corpus=[_absolute(path) for path in flags.options.corpus],
    )
    return replace(flags, engine_dir=_absolute(flags.engine_dir), options=options)


def _absolute(path: str | Path) -> str:
    """A path from anywhere; names on the hub stay."""
    return str(Path(path).resolve() if Path(path).exists() else path)


_USES_GPU = {"cuda": True, "cpu": False}


def gpus_each(flags: AnsweringFlags, cluster: Cluster) -> int:
    """GPUs of each replica: one for each of its ranks, none on CPUs."""
    found = _USES_GPU.get(flags.options.device.partition(":")[0])
    uses = cluster.has_gpus if found is None else found
    return (flags.options.tp_size or flags.options.lookahead_parallel or 1) if uses else 0


@contextmanager
def spread_records(
    note: Callable[[str], None],
    flags: AnsweringFlags,
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
    each = spread_out(flags, number)
    threads = each.options.threads or 1
    batch_size = open_model(Path(flags.engine_dir), None).batch_size(flags.options.max_batch_size)
    opening = partial(open_answering, each, who)
    share = Share(opening, task.source.resolve(), task.labelling)
    cluster = Cluster(settings.ray_address, threads * number)
    try:
        gpus = gpus_each(flags, cluster)
        check_room(number, threads, gpus)
        note(f"note: runs on {counted(number, 'replica')} of {counted(threads, 'thread')}")
        pool = Pool(number, threads, gpus, batch_size)
        with quiet():
            yield task.kept(spread(task.left(), task.survey, share, pool))
    finally:
        cluster.close()


def new_replica_engine(
    flags: Flags, spread: ReplicaSettings, open_model: Callable[[Flags], LLM]
) -> NewEngine:
    """What decodes for the server on replicas, each of which opens the model of these flags."""
    check_spread(flags, "ray.serve")
    from trtla.formats.engine import model_digest
    from trtla.replicas.cluster import Cluster
    from trtla.replicas.deployment import Plan
    from trtla.replicas.engine import Maker, ReplicaEngine
    from trtla.replicas.replica import open_same

    each = spread_out(flags, spread.range[1])
    threads = each.options.threads or 1

    def plan(maker: Maker, cluster: Cluster) -> Plan:
        size = maker.engine.batch_size(flags.options.max_batch_size)
        opening = partial(open_same, partial(open_model, each), model_digest(maker.engine))
        return Plan(opening, spread.range, threads, size, gpus_each(flags, cluster))

    def new_maker() -> Maker:
        maker = Maker(flags.engine_dir, flags.options)
        maker.force_greedy = flags.force_greedy
        return maker

    connect = partial(Cluster, spread.ray_address, threads * spread.range[1])
    return partial(ReplicaEngine, new_maker, plan, connect)
