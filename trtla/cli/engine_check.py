"""Triples against an engine's manifest, read without torch: a refusal must not wait.

Engines of trtllm-build, which have no manifest, are looked at as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtla.build.compiled import check_compiled, is_compiled, unknown_triple
from trtla.build.folder_kind import folder_kind
from trtla.config import EngineConfig, EngineManifest, read_json, validate
from trtla.lookahead import (
    AUTOREGRESSIVE,
    LookaheadConfig,
    check_request,
    check_server,
)


def check_triples(
    engine_dir: str,
    server: LookaheadConfig | None,
    requests: Iterable[tuple[str, LookaheadConfig | None]] = (),
) -> None:
    """Check the server's triple against the engine, and the requests' against the server's.

    Args:
        engine_dir: an engine; a Hugging Face folder takes any triple.
        server: the triple asked for; None is the engine's own.
        requests: (name, triple) of every request.

    Raises:
        UsageError: no model is there, or a triple does not fit.
    """
    folder = Path(engine_dir)
    limit = _engine_triple(folder, server) if folder_kind(folder) == "engine" else server
    for name, triple in requests:
        if triple is not None and limit is not None:
            check_request(triple, limit, name)


def _engine_triple(folder: Path, server: LookaheadConfig | None) -> LookaheadConfig:
    """The server's triple, the engine's own if none is asked for."""
    path, manifest = folder / "config.json", _manifest(folder)
    config = validate(EngineConfig, read_json(path), str(path))
    if manifest.backend == "tensorrt-llm" if manifest else is_compiled(folder):
        check_compiled(folder, config)
    needed = config.build_config.max_draft_len
    if server is not None:
        check_server(server, needed, str(folder))
        return server
    if manifest is not None:
        return manifest.triple
    if needed:
        raise unknown_triple(str(folder), needed)
    return AUTOREGRESSIVE


def _manifest(folder: Path) -> EngineManifest | None:
    path = folder / "trtla.json"
    return validate(EngineManifest, read_json(path), str(path)) if path.is_file() else None
