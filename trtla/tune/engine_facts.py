"""What tells one engine's weights and limits from another's, without reading the weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtla.formats.engine import Engine

_WEIGHTS = ("*.safetensors", "*.bin", "*.engine")


def engine_facts(engine: Engine) -> dict[str, object]:
    """The shape, and the manifest's checksum or else sizes and times of the weight files."""
    facts: dict[str, object] = {"config": engine.config.model_dump(mode="json")}
    if engine.manifest is not None:
        return {**facts, "source": engine.manifest.source_sha256}
    return {**facts, "files": [_stamp(path) for path in _weights(engine.path)]}


def _weights(folder: Path) -> list[Path]:
    return sorted(path for pattern in _WEIGHTS for path in folder.glob(pattern))


def _stamp(path: Path) -> list[object]:
    found = path.stat()
    return [path.name, found.st_size, found.st_mtime_ns]
