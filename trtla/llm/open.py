"""Opening the parts of an `LLM`: engines, Hugging Face folders, tokenizers, draft models,
executors.

The torch executor runs on the requested number of ranks, or on those that torchrun has started.
`python -m trtla.llm.open` is a rank that another process has started: it opens its part and serves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from trtla.errors import RankLost, TrtlaError, UsageError, named, require
from trtla.formats.engine import EncoderDecoder, Engine
from trtla.formats.gguf.folder import find_folder
from trtla.formats.model import Model
from trtla.formats.special_tokens import end_tokens
from trtla.formats.support import split_config
from trtla.llm.custom_drafters import custom_drafters
from trtla.llm.text import Tokenizer
from trtla.llm.tokenizer_files import named_tokens
from trtla.llm.vocabulary import check_draft_model
from trtla.machine import usable_cores
from trtla.runtime.device import resolve_device
from trtla.runtime.drafters.custom import CustomDrafters
from trtla.runtime.executor import Executor
from trtla.runtime.limits import distinct_heads
from trtla.runtime.ranks.opening import give_back_cores, share_cores
from trtla.runtime.ranks.place import Place, torchrun_place
from trtla.settings.drafting import check_draft_place, check_drafts_itself
from trtla.settings.executor import ENGINE_OPTIONS, TRTLLM_DEFAULTS, ExecutorOptions, TrtllmSettings
from trtla.settings.fields import texts
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, refuse_auto
from trtla.settings.messages import NO_VARIABLES
from trtla.trtllm import library as mpi

if TYPE_CHECKING:
    from trtla.formats.heads.head import Head


def _draft_engines(target: Engine, options: ExecutorOptions) -> dict[str, Engine]:
    """Open the draft models' folders without loading them; none for TensorRT-LLM's executor."""
    named = texts("draft_models", options.draft_models, "paths")
    if target.backend == "tensorrt-llm":
        check_drafts_itself(options.drafter, target.name)
        return {}
    default = () if options.drafter.draft_model is None else (options.drafter.draft_model,)
    models = {path: Model.at(path) for path in (*default, *named)}
    for path, model in models.items():
        check_draft_model(path, model, Model(target.folder), options.tokenizer_dir)
    return {path: model.open(AUTOREGRESSIVE) for path, model in models.items()}


def _heads(target: Engine, options: ExecutorOptions) -> dict[str, Head]:
    """Read the descriptions of trained heads, which must fit the model."""
    named = texts("heads", options.heads, "paths")
    if target.backend == "tensorrt-llm":
        return {}
    paths = (*(() if options.drafter.head is None else (options.drafter.head,)), *named)
    if not paths:
        return {}
    from trtla.formats.heads.reading import read_head

    config, layers = target.config.pretrained_config, options.boundaries
    return {path: read_head(path, layers, config) for path in distinct_heads(paths)}


def open_tokenizer(engine: Engine, options: ExecutorOptions) -> Tokenizer | None:
    """Open the options' tokenizer, else the model's own; None if it has none."""
    chosen = options.tokenizer_dir
    if chosen is None and engine.tokenizer_dir is None:
        return None
    folder = engine.folder if chosen is None else find_folder(chosen)
    return Tokenizer(
        folder.with_template(options.template),
        parse_special=options.parse_special,
        variables=options.chat_template_kwargs or NO_VARIABLES,
    )


def end_ids(engine: Engine, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Return all token ids that end a text: the model's, and its tokenizer's end token."""
    if tokenizer is None:
        return engine.end_ids()
    return frozenset(end_tokens(engine.folder, tokenizer.files, tokenizer.token_id))


def pad_ids(tokenizer: Tokenizer | None, ends: frozenset[int]) -> frozenset[int]:
    """Return the token ids that fill up rows: the tokenizer's pad token, else the end tokens."""
    if tokenizer is None:
        return ends
    name = dict(named_tokens(tokenizer.config)).get("pad_token")
    token = None if name is None else tokenizer.token_id(name)
    return ends if token is None else frozenset({token})


def is_adaptive(engine: Engine, lookahead: Lookahead | None) -> bool:
    """Return True if requests without a setting use `auto`; refuse it where it is impossible."""
    torch_engine = engine.backend != "tensorrt-llm"
    if lookahead == "auto" and not torch_engine:
        raise refuse_auto(engine.name)
    return lookahead in (None, "auto") and torch_engine


def open_executor(engine: Engine, options: ExecutorOptions = ENGINE_OPTIONS) -> Executor:
    """Open the executor that the engine was built for, and its draft models.

    Args:
        engine: an engine directory, or one made in memory from a Hugging Face folder.
        options: that differ from the engine's own.
    """
    draft_engines, heads = _draft_engines(engine, options), _heads(engine, options)
    trtllm_engine = engine.name if engine.backend == "tensorrt-llm" else None
    draft_place = (options.draft_device, options.draft_dtype)
    check_draft_place(*draft_place, bool(draft_engines), trtllm_engine)
    if trtllm_engine is not None:
        from trtla.trtllm.start import open_trtllm_executor

        return open_trtllm_executor(engine, options)
    _check_torch(engine, options.trtllm)
    custom = custom_drafters((*options.drafter.custom, *options.custom_drafters))
    return _open_on_ranks(engine, options, draft_engines, heads, custom)


def _check_torch(engine: Engine, trtllm: TrtllmSettings) -> None:
    if trtllm != TRTLLM_DEFAULTS:
        raise UsageError(
            f"{engine.name} is a torch engine, which has no settings of TensorRT-LLM",
            f"omit {named('kv_cache_')}..., {named('enable_chunked_context')}, "
            f"{named('scheduler_policy')} and "
            f"{named('trtllm_executor')}",
        )
    if mpi.world_size() > 1:
        raise UsageError(
            f"{engine.name} is a torch engine, which does not run under MPI, and "
            f"{mpi.world_size()} processes do",
            f"start it without mpirun: {named('tp_size')} starts the ranks itself, and torchrun "
            "can",
        )


def _open_on_ranks(
    engine: Engine,
    options: ExecutorOptions,
    draft_engines: Mapping[str, Engine],
    heads: Mapping[str, Head],
    custom: CustomDrafters,
) -> Executor:
    """Open this process's executor: as the only rank, as rank 0, or as torchrun's."""
    from trtla.runtime.loop.start import open_torch_executor

    place, name, ranks = torchrun_place(), *_rank_setting(options)
    if place is None and ranks in (None, 1):
        return open_torch_executor(engine, options, draft_engines, heads, custom=custom)
    size = ranks or (place.size if place else 1)
    if place is not None and place.size != size:
        raise UsageError(
            f"{name} is {size}, and torchrun has started {place.size} ranks",
            f"omit {named(name)}, or use torchrun --nproc-per-node {size}",
        )
    _check_split(engine, name, size)
    if heads and name == "lookahead_parallel":
        from trtla.runtime.loop.lookahead_rank import check_head_ranks

        check_head_ranks(size, [*heads])
    require(f"{name} {size}", "torch")
    from trtla.runtime.ranks.launch import start_ranks
    from trtla.runtime.ranks.world import World, torchrun_store

    threads = share_cores(usable_cores() // (size if place is None else place.on_machine))
    with ExitStack() as undo:
        undo.callback(give_back_cores)
        started = None
        if place is None:
            theirs = replace(options, custom_drafters=())  # this process drafts
            arguments = (str(engine.path), engine.in_memory_lookahead, theirs)
            started = start_ranks("trtla.llm.open", arguments, size, threads)
            undo.callback(started.end)
            place = Place(0, size, size)
        options = _on_rank(options, place.local_rank)
        store = torchrun_store() if started is None else started.store
        world = World(store, place, resolve_device(options.device), started)
        undo.callback(world.close)
        drafts, heads = (draft_engines, heads) if world.leads else ({}, {})
        executor = open_torch_executor(engine, options, drafts, heads, world, custom)
        undo.pop_all()
        return executor


def _rank_setting(options: ExecutorOptions) -> tuple[str, int | None]:
    if options.lookahead_parallel is None:
        return "tp_size", options.tp_size
    if options.tp_size is not None:
        raise UsageError(
            f"{named('tp_size')} {options.tp_size} and {named('lookahead_parallel')} "
            f"{options.lookahead_parallel} "
            "exclude each other",
            f"give {named('tp_size')} to split the model, or {named('lookahead_parallel')} to "
            "share out the drafts",
        )
    return "lookahead_parallel", options.lookahead_parallel


def _check_split(engine: Engine, name: str, size: int) -> None:
    """Refuse a model that cannot run on that many ranks, before they are started."""
    if isinstance(engine, EncoderDecoder):
        raise UsageError(
            f"{engine.name} is an encoder-decoder, which one process runs, and {name} is {size}",
            f"omit {named(name)}, and start it without torchrun",
        )
    if name == "tp_size":
        split_config(engine.config.pretrained_config, size)


def _on_rank(options: ExecutorOptions, rank: int) -> ExecutorOptions:
    """Return the options of one of a machine's ranks: each has a GPU of its own."""
    device = resolve_device(options.device)
    if device.type != "cuda":
        return options
    return replace(options, device=f"cuda:{(device.index or 0) + rank}")


def main() -> int:
    """Serve in a process that another rank has started, until that closes; return the exit code."""
    from trtla.runtime.loop.start import open_torch_executor
    from trtla.runtime.ranks.launch import rank_input
    from trtla.runtime.ranks.world import World

    (path, lookahead, options), place, store = rank_input()
    try:
        options = _on_rank(options, place.rank)
        world = World(store, place, resolve_device(options.device))
        engine = Model.at(path).open(lookahead, options.max_seq_len)
        with open_torch_executor(engine, options, {}, {}, world):
            pass  # leaving the block serves until the end
    except RankLost:
        return 1  # rank 0 has ended, and reports why
    except TrtlaError as error:
        sys.stderr.write(f"rank {place.rank}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
