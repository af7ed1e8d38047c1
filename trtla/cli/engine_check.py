"""Triples against an engine's manifest, read without torch: a refusal must not wait."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtla.build.folder_kind import folder_kind
from trtla.config import EngineConfig, EngineManifest, read_json, validate
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig, check_request, check_server


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
    own = _engine_triple(folder, server) if folder_kind(folder) == "engine" else None
    limit = server or own
    for name, triple in requests:
        if triple is not None and limit is not None:
            check_request(triple, limit, name)


def _engine_triple(folder: Path, server: LookaheadConfig | None) -> LookaheadConfig | None:
    """The engine's own triple, None where only max_draft_len is known; checks the server's."""
    path = folder / "config.json"
    limits = validate(EngineConfig, read_json(path), str(path)).build_config
    if server is not None:
        check_server(server, limits.max_draft_len, str(folder))
    manifest = folder / "trtla.json"
    if manifest.is_file():
        return validate(EngineManifest, read_json(manifest), str(manifest)).triple
    return None if limits.max_draft_len else AUTOREGRESSIVE
