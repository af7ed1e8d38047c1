"""Triples against an engine's manifest, read without torch: a refusal must not wait.

Engines of trtllm-build, which have no manifest, are looked at as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.compiled import check_compiled
from trtla.formats.engine import read_engine
from trtla.formats.folder import folder_kind
from trtla.settings.lookahead import (
    Lookahead,
    LookaheadConfig,
    check_request,
    refuse_auto,
)


def check_triples(
    engine_dir: str,
    server: Lookahead | None,
    requests: Iterable[tuple[str, Lookahead | None]] = (),
) -> None:
    """Check the server's triple against the engine, and the requests' against the server's.

    Args:
        engine_dir: an engine; a Hugging Face folder takes any triple.
        server: the triple asked for; None is the engine's own, and so is auto.
        requests: (name, triple or auto) of every request.

    Raises:
        UsageError: no model is there, a triple does not fit, or the engine knows no auto.
    """
    folder = Path(engine_dir)
    asked = None if server == "auto" else server
    is_engine = folder_kind(folder) == "engine"
    limit = _engine_triple(folder, asked) if is_engine else asked
    if server == "auto" and is_engine and is_trtllm(folder):
        raise refuse_auto(engine_dir)
    for name, triple in requests:
        if triple == "auto":
            if is_engine and is_trtllm(folder):
                raise refuse_auto(name)
        elif triple is not None and limit is not None:
            check_request(triple, limit, name)


def engine_limits(engine_dir: str) -> LookaheadConfig | None:
    """The triple an engine was built for; None for a Hugging Face folder, which takes any.

    Raises:
        UsageError: no model is there, or an engine of trtllm-build does not say its triple.
    """
    folder = Path(engine_dir)
    kind = folder_kind(folder)
    if kind == "checkpoint":
        raise UsageError(
            f"{engine_dir} is a checkpoint, not an engine",
            f"run trtla build --checkpoint-dir {engine_dir} --output-dir ENGINE",
        )
    return _engine_triple(folder, None) if kind == "engine" else None


def check_batch_size(engine_dir: str, batch_size: int) -> None:
    """Check a batch size against the engine's; a Hugging Face folder is not looked at.

    Raises:
        UsageError: it is above the engine's.
    """
    folder = Path(engine_dir)
    if folder_kind(folder) != "engine":
        return
    largest = read_engine(folder).config.build_config.max_batch_size
    if batch_size > largest:
        raise UsageError(
            f"batch size {batch_size} is above the {largest} of {engine_dir}",
            "use a smaller --batch-size, or rebuild the engine with a larger --max-batch-size",
        )


def _engine_triple(folder: Path, asked: LookaheadConfig | None) -> LookaheadConfig:
    """The engine's triple, or the one asked for if the engine takes it."""
    engine = read_engine(folder)
    if engine.backend == "tensorrt-llm":
        check_compiled(folder, engine.config)
    return engine.default_triple(asked)


def is_trtllm(folder: Path) -> bool:
    """Whether TensorRT-LLM runs what is in an engine's folder."""
    return folder_kind(folder) == "engine" and read_engine(folder).backend == "tensorrt-llm"
