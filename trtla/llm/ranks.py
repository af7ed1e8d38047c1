"""Opens the torch executor on as many ranks as are asked for, or as torchrun has started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trtla.errors import UsageError
from trtla.formats.engine import EncoderDecoder, Engine
from trtla.formats.support import split_config
from trtla.machine import usable_cores
from trtla.runtime.executor import Executor
from trtla.runtime.loop.start import open_torch_executor
from trtla.runtime.models.load import resolve_device
from trtla.runtime.ranks.launch import start_ranks
from trtla.runtime.ranks.opening import give_back_cores, share_cores
from trtla.runtime.ranks.world import Place, World, torchrun_place, torchrun_store
from trtla.settings.executor import ExecutorOptions


def open_on_ranks(
    engine: Engine, options: ExecutorOptions, draft_engines: Mapping[str, Engine]
) -> Executor:
    """This process's executor: of the only rank, of rank 0, or of another that torchrun started.

    Raises:
        UsageError: the model cannot be split, or torchrun has started another number of ranks.
        TrtlaError: the ranks do not find each other.
    """
    place, name, ranks = torchrun_place(), *_rank_setting(options)
    if place is None and ranks in (None, 1):
        return open_torch_executor(engine, options, draft_engines)
    size = ranks or (place.size if place else 1)
    if place is not None and place.size != size:
        raise UsageError(
            f"{name} is {size}, and torchrun has started {place.size} ranks",
            f"omit {_flag(name)}, or use torchrun --nproc-per-node {size}",
        )
    _check(engine, name, size)
    threads = share_cores(usable_cores() // (size if place is None else place.on_machine))
    try:
        if place is None:
            return _open_started(engine, options, draft_engines, size, threads)
        return _open_placed(engine, options, draft_engines, place)
    except BaseException:
        give_back_cores()
        raise


def _rank_setting(options: ExecutorOptions) -> tuple[str, int | None]:
    """The setting that says how many ranks there are, and what it says."""
    if options.lookahead_parallel is None:
        return "tp_size", options.tp_size
    if options.tp_size is not None:
        raise UsageError(
            f"--tp-size {options.tp_size} and --lookahead-parallel {options.lookahead_parallel} "
            "exclude each other",
            "give --tp-size to split the model, or --lookahead-parallel to share out the drafts",
        )
    return "lookahead_parallel", options.lookahead_parallel


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check(engine: Engine, name: str, size: int) -> None:
    """Refuse a model that cannot run on so many ranks, before they are started."""
    if isinstance(engine, EncoderDecoder):
        raise UsageError(
            f"{engine.name} is an encoder-decoder, which one process runs, and {name} is {size}",
            f"omit {_flag(name)}, and start it without torchrun",
        )
    if name == "tp_size":
        split_config(engine.config.pretrained_config, size)


def _open_placed(
    engine: Engine, options: ExecutorOptions, draft_engines: Mapping[str, Engine], place: Place
) -> Executor:
    options = on_rank(options, place.local_rank)
    world = World(torchrun_store(), place, resolve_device(options.device))
    return _open(engine, options, draft_engines if world.leads else {}, world)


def _open_started(
    engine: Engine,
    options: ExecutorOptions,
    draft_engines: Mapping[str, Engine],
    size: int,
    threads: int,
) -> Executor:
    """Rank 0's executor; the other ranks are started on this machine."""
    arguments = (str(engine.path), engine.in_memory_lookahead, options)
    started = start_ranks("trtla.llm.rank", arguments, size, threads)
    try:
        options = on_rank(options, 0)
        device, place = resolve_device(options.device), Place(0, size, size)
        world = World(started.store, place, device, started)
    except BaseException:
        started.end()
        raise
    return _open(engine, options, draft_engines, world)


def _open(
    engine: Engine, options: ExecutorOptions, draft_engines: Mapping[str, Engine], world: World
) -> Executor:
    try:
        return open_torch_executor(engine, options, draft_engines, world)
    except BaseException:
        world.close()
        raise


def on_rank(options: ExecutorOptions, rank: int) -> ExecutorOptions:
    """The options of one of the ranks on a machine: each has a GPU of its own."""
    device = resolve_device(options.device)
    if device.type != "cuda":
        return options
    return replace(options, device=f"cuda:{(device.index or 0) + rank}")
