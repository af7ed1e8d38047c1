"""Checks triples and batch sizes against an engine, read without torch: a refusal must not wait.

Pydantic is imported when an engine is read, so that `--help` starts without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trtla.errors import UsageError
from trtla.settings.lookahead import Lookahead, LookaheadConfig, check_request, refuse_auto

if TYPE_CHECKING:
    from trtla.formats.engine import Engine


def check_triples(
    engine_dir: str,
    default: Lookahead | None,
    requests: Iterable[tuple[str, Lookahead | None]] = (),
) -> None:
    """Check the default triple against the engine, and the requests' triples against the default.

    Args:
        engine_dir: an engine; a Hugging Face folder takes any triple.
        default: the triple of requests that name none; None is the engine's own, and so is auto.
        requests: (name, triple or auto) of every request.

    Raises:
        UsageError: no model is there, a triple does not fit, or the engine has no auto.
    """
    engine, asked = _engine(engine_dir), None if default == "auto" else default
    limit = _triple(engine, asked) if engine else asked
    for name, triple in ((engine_dir, default), *requests):
        if triple == "auto":
            if engine is not None and engine.backend == "tensorrt-llm":
                raise refuse_auto(name)
        elif triple is not None and limit is not None:
            check_request(triple, limit, name)


def engine_limits(engine_dir: str) -> LookaheadConfig | None:
    """The triple an engine was built for; None for a Hugging Face folder, which takes any.

    Raises:
        UsageError: no model is there, or an engine of trtllm-build does not name its triple.
    """
    from trtla.formats.engine import check_is_engine
    from trtla.formats.folder import folder_kind

    if folder_kind(Path(engine_dir)) == "checkpoint":
        check_is_engine(Path(engine_dir))
    engine = _engine(engine_dir)
    return _triple(engine, None) if engine else None


def check_batch_size(engine_dir: str, batch_size: int) -> None:
    """Check a batch size against the engine's; a Hugging Face folder takes any.

    Raises:
        UsageError: it is above the engine's.
    """
    engine = _engine(engine_dir)
    if engine is None:
        return
    largest = engine.config.build_config.max_batch_size
    if batch_size > largest:
        raise UsageError(
            f"batch size {batch_size} is above the {largest} of {engine_dir}",
            "use a smaller --batch-size, or rebuild the engine with a larger --max-batch-size",
        )


def is_trtllm(folder: Path) -> bool:
    """Whether TensorRT-LLM runs what is in an engine's folder."""
    engine = _engine(folder)
    return engine is not None and engine.backend == "tensorrt-llm"


def _engine(folder: str | Path) -> Engine | None:
    """The engine in a folder, its limits unchecked; None where the folder is no engine."""
    from trtla.formats.engine import read_engine
    from trtla.formats.folder import folder_kind

    return read_engine(Path(folder)) if folder_kind(Path(folder)) == "engine" else None


def _triple(engine: Engine, asked: LookaheadConfig | None) -> LookaheadConfig:
    """The engine's triple, or the one asked for if the engine takes it."""
    if engine.backend == "tensorrt-llm":
        from trtla.formats.compiled import check_compiled

        check_compiled(engine.path, engine.config)
    return engine.default_triple(asked)
