"""Keys of circumstances, by which measurements are found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtla.formats.gguf.header import MADE_OF

if TYPE_CHECKING:
    from trtla.formats.engine import Engine

_WEIGHTS = ("*.safetensors", "*.bin", "*.engine", MADE_OF)


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return a key for circumstances: equal facts have equal keys."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def engine_facts(engine: Engine) -> dict[str, object]:
    """Describe an engine's weights and limits uniquely, without reading the weights."""
    facts: dict[str, object] = {"config": engine.config.model_dump(mode="json")}
    if engine.manifest is not None:
        return {**facts, "source": engine.manifest.source_sha256}
    # There is no checksum: sizes and times stand for it.
    weights = sorted(path for pattern in _WEIGHTS for path in engine.path.glob(pattern))
    stamps = [(path.name, path.stat()) for path in weights]
    return {**facts, "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stamps]}
