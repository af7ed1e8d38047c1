"""What was measured, kept line by line as it comes: a run that was cut off goes on from there.

One JSON object a line, each with the key of its circumstances; lines of other circumstances, and a
last line that was cut off, are skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError
from trtla.files import parse_json
from trtla.formats.gguf.header import MADE_OF

if TYPE_CHECKING:
    from trtla.formats.engine import Engine

FILE = "measurements.jsonl"
FORMAT_VERSION = 3
_WEIGHTS = ("*.safetensors", "*.bin", "*.engine", MADE_OF)


def fingerprint(facts: Mapping[str, Any]) -> str:
    """A key for circumstances: equal facts, equal key."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def engine_facts(engine: Engine) -> dict[str, object]:
    """What identifies an engine's weights and limits, without reading the weights.

    The manifest's checksum, or else sizes and times of the weight files.
    """
    facts: dict[str, object] = {"config": engine.config.model_dump(mode="json")}
    if engine.manifest is not None:
        return {**facts, "source": engine.manifest.source_sha256}
    weights = sorted(path for pattern in _WEIGHTS for path in engine.path.glob(pattern))
    stamps = [(path.name, path.stat()) for path in weights]
    return {**facts, "files": [[name, own.st_size, own.st_mtime_ns] for name, own in stamps]}


def check_folder(folder: Path) -> None:
    """Make the folder and see that it can be written to.

    Raises:
        UsageError: it cannot.
    """
    probe = folder / ".trtla-tune"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written to: {error.strerror or error}",
            "give another --output-dir",
        ) from None


class Measurements:
    """The measurements of one key in a folder.

    Args:
        folder: it can be written to.
        key: `fingerprint` of all that they depend on.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._path, self._key = folder / FILE, key
        self._found: dict[str, Any] = {}
        text = ""
        with suppress(FileNotFoundError):
            text = self._path.read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n"):
            self._take(line)
        self._whole = not text or text.endswith("\n")
        self.resumed = len(self._found)
        """How many there were already."""

    def _take(self, line: str) -> None:
        with suppress(ValueError, KeyError, TypeError):
            row = parse_json(line)
            if row["key"] == self._key and row["format_version"] == FORMAT_VERSION:
                self._found[row["name"]] = row["value"]

    def get(self, name: str) -> Any:
        """What was measured under a name; None: nothing yet."""
        return self._found.get(name)

    def put(self, name: str, value: Any) -> None:
        """Keep a measurement, on disk before this returns to the caller.

        Raises:
            UsageError: the file cannot be written.
        """
        row = {"format_version": FORMAT_VERSION, "key": self._key, "name": name, "value": value}
        before = "" if self._whole else "\n"  # behind a line that was cut off
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{before}{json.dumps(row)}\n")
        except OSError as error:
            raise UsageError(
                f"{self._path} cannot be written: {error.strerror or error}",
                "free some space, or give another --output-dir; what was measured is kept",
            ) from None
        self._whole = True
        self._found[name] = value

    def names(self, prefix: str) -> list[str]:
        """The names that begin like this, in the order they came."""
        return [name for name in self._found if name.startswith(prefix)]
