"""Opens what `LLM` runs: engines, Hugging Face folders, tokenizers, draft models, executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.engine import Engine, open_engine
from trtla.formats.folder import folder_kind
from trtla.formats.gguf.folder import model_folder
from trtla.formats.t5_config import check_same_kind, is_encoder_decoder
from trtla.llm.text import Tokenizer
from trtla.runtime.executor import Executor
from trtla.settings.drafting import check_draft_place, check_drafts_itself
from trtla.settings.executor import ENGINE_OPTIONS, TRTLLM_DEFAULTS, ExecutorOptions, TrtllmSettings
from trtla.settings.fields import texts
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig, refuse_auto
from trtla.trtllm import library as mpi

DEFAULT_LOOKAHEAD = LookaheadConfig(7, 7, 7)
"""The default triple for a Hugging Face folder when none is given."""


def draft_engines(target: Engine, options: ExecutorOptions) -> dict[str, Engine]:
    """The draft models' folders, opened but not loaded; none for what TensorRT-LLM runs."""
    named = texts("draft_models", options.draft_models, "paths")
    if target.backend == "tensorrt-llm":
        check_drafts_itself(options.drafter, target.name)
        return {}
    own = () if options.drafter.draft_model is None else (options.drafter.draft_model,)
    paths = (*own, *named)
    for path in paths:
        check_same_kind(model_folder(path), target.path)
    return {path: open_model(Path(path), AUTOREGRESSIVE) for path in paths}


def open_model(path: Path, lookahead: LookaheadConfig | None) -> Engine:
    """An engine directory, or a Hugging Face folder or GGUF file: converted in memory, or as it is
    (T5).
    """
    path = model_folder(path)
    if is_encoder_decoder(path):
        from trtla.formats.engine import open_encoder_decoder

        return open_encoder_decoder(path, lookahead or DEFAULT_LOOKAHEAD)
    if folder_kind(path) == "Hugging Face model":
        from trtla.formats.engine import engine_from_hugging_face
        from trtla.formats.engine_limits import BuildSettings

        return engine_from_hugging_face(path, BuildSettings(lookahead or DEFAULT_LOOKAHEAD))
    return open_engine(path)


def open_tokenizer(engine: Engine, options: ExecutorOptions) -> Tokenizer | None:
    """That of the options' folder, else the one beside the model; None: the model has none."""
    folder = options.tokenizer_dir
    place = engine.tokenizer_dir if folder is None else model_folder(folder)
    return None if place is None else Tokenizer(place, parse_special=options.parse_special)


def is_adaptive(engine: Engine, lookahead: Lookahead | None) -> bool:
    """Whether requests that name nothing are decoded with `auto`, where this was asked for."""
    torch_engine = engine.backend != "tensorrt-llm"
    if lookahead == "auto" and not torch_engine:
        raise refuse_auto(engine.name)
    return lookahead in (None, "auto") and torch_engine


def open_executor(
    engine: Engine,
    options: ExecutorOptions = ENGINE_OPTIONS,
    draft_engines: Mapping[str, Engine] | None = None,
) -> Executor:
    """Open the executor that the engine was built for.

    Args:
        engine: an engine directory, or one made in memory from a Hugging Face folder.
        options: what differs from the engine's own.
        draft_engines: draft models by the path that `draft:PATH` names, for the torch executor.

    Raises:
        UsageError: an option does not fit the engine.
        TrtlaError: the engine's backend cannot run here.
    """
    trtllm_engine = engine.name if engine.backend == "tensorrt-llm" else None
    place = (options.draft_device, options.draft_dtype)
    check_draft_place(*place, bool(draft_engines), trtllm_engine)
    if trtllm_engine is not None:
        from trtla.trtllm.start import open_trtllm_executor

        check_drafts_itself(options.drafter, engine.name)
        return open_trtllm_executor(engine, options)
    _check_torch(engine, options.trtllm)
    from trtla.llm.ranks import open_on_ranks

    return open_on_ranks(engine, options, draft_engines or {})


def open_drafting(
    engine: Engine, options: ExecutorOptions, drafted_from: Sequence[Sequence[int]]
) -> Executor:
    """The executor, with draft models that requests name and a corpus to draft from.

    Raises:
        UsageError: a file or an option does not fit the engine.
        TrtlaError: the engine's backend cannot run here.
    """
    executor = open_executor(engine, options, draft_engines(engine, options))
    if drafted_from:
        executor.add_texts(drafted_from)
    return executor


def _check_torch(engine: Engine, trtllm: TrtllmSettings) -> None:
    if trtllm != TRTLLM_DEFAULTS:
        raise UsageError(
            f"{engine.name} is a torch engine, which has no settings of TensorRT-LLM",
            "leave out --kv-cache-..., --enable-chunked-context, --scheduler-policy and "
            "--trtllm-executor",
        )
    if mpi.world_size() > 1:
        raise UsageError(
            f"{engine.name} is a torch engine, which does not run under MPI, and "
            f"{mpi.world_size()} processes do",
            "start it without mpirun: --tp-size starts the ranks itself, and torchrun can",
        )
