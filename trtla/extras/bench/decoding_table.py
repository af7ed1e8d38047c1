"""The CSV of decodings: a row an arm and batch, appended as they end.

Each row has the key of its circumstances, so that the same command does not decode it again.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from trtla.errors import UsageError
from trtla.extras.bench.documents import Decoding
from trtla.files import read_text, written

COLUMNS = tuple(Decoding.model_fields)


class DecodingTable:
    """The decodings of a file, by their keys in the order of its rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = {row.key: row for row in read_decodings(path)}

    def append(self, rows: Sequence[Decoding]) -> None:
        """Write rows in one piece, before this returns."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if not self.path.exists() or not self.path.stat().st_size:
            writer.writerow(COLUMNS)
        writer.writerows(csv_cells(row.document(), COLUMNS) for row in rows)
        hint = "free some space, and run the same command again"
        with written(self.path, hint), self.path.open("a", encoding="utf-8") as file:
            file.write(out.getvalue())
        self.rows.update((row.key, row) for row in rows)


def read_decodings(path: Path) -> list[Decoding]:
    """Read a table, and cut off a last line that a kill left half-written."""
    if not path.exists() or not path.stat().st_size:
        return []
    text = read_text(path)
    whole = text[: text.rfind("\n") + 1]
    lines = csv.DictReader(io.StringIO(whole))
    if tuple(lines.fieldnames or ()) != COLUMNS:
        raise UsageError(
            f"{path} is not a table of decodings of this version", "give another --output"
        )
    rows = list(_parsed(lines, path))
    if whole != text:
        os.truncate(path, len(whole.encode()))
    return rows


def _parsed(lines: Iterable[dict[str, str]], path: Path) -> Iterable[Decoding]:
    for number, line in enumerate(lines, 2):
        try:
            yield Decoding.model_validate({key: x for key, x in line.items() if x != ""})
        except ValidationError:
            raise UsageError(
                f"{path}: line {number} is no decoding", "delete it, or give another --output"
            ) from None


def csv_cells(values: Mapping[str, object], columns: Iterable[str]) -> list[object]:
    """Return the cells of a line; lists and objects are JSON."""
    cells = (values.get(name) for name in columns)
    return [json.dumps(x) if isinstance(x, list | dict) else x for x in cells]
