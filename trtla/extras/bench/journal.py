"""The journal of measurements, from which an interrupted run resumes.

Each line is a JSON object with the key of its circumstances. Lines of other circumstances, and a
last line that a kill left half-written, are skipped.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtla.extras.bench.keys import engine_facts, fingerprint
from trtla.files import parse_json, written

__all__ = ["Measurements", "engine_facts", "fingerprint"]

FORMAT_VERSION = 4


class Measurements:
    """The measurements of one key in a file.

    Args:
        key: `fingerprint` of everything that they depend on and their names do not say.
        flag: the flag that names the file's folder, for errors.
    """

    def __init__(self, path: Path, key: str, flag: str) -> None:
        self.path, self._key, self._flag = path, key, flag
        self.entries: dict[str, Any] = {}
        """Values by name, in the order in which they were measured."""
        text = ""
        with suppress(FileNotFoundError):
            text = path.read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n"):
            self._take(line)
        self._whole = not text or text.endswith("\n")

    def _take(self, line: str) -> None:
        with suppress(ValueError, KeyError, TypeError):
            row = parse_json(line)
            if row["key"] == self._key and row["format_version"] == FORMAT_VERSION:
                self.entries[row["name"]] = row["value"]

    def get(self, name: str) -> Any:
        """Return the measurement of a name; None: there is none yet."""
        return self.entries.get(name)

    def put(self, name: str, value: Any) -> None:
        """Append a measurement, written in one piece before this returns."""
        row = {"format_version": FORMAT_VERSION, "key": self._key, "name": name, "value": value}
        before = "" if self._whole else "\n"  # after a line that was cut off
        hint = f"free some space, or give another {self._flag}; measurements are kept"
        with written(self.path, hint), self.path.open("a", encoding="utf-8") as file:
            file.write(f"{before}{json.dumps(row)}\n")
        self._whole = True
        self.entries[name] = value
