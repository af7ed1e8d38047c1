"""Reading of result files: each document is recognised by its content, other files are refused.

A JSON object is recognised by its keys, a CSV table by its columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from trtla.errors import UsageError, needed, sentence
from trtla.extras.bench.documents import CSV_ENVIRONMENT, Bench, whole_category
from trtla.extras.bench.tune.documents import Tune
from trtla.files import JsonError, parse_json, read_text
from trtla.results.documents import Run
from trtla.results.rows import Summarize

Document = Bench | Tune | Summarize | Run
Kind = Literal["bench", "tune", "summarize", "run"]

_KINDS: dict[Kind, tuple[type[Document], tuple[str, ...]]] = {
    "bench": (Bench, ("rows", "cells")),
    "tune": (Tune, ("recommendation", "cost", "rows")),
    "summarize": (Summarize, ("rows", "items")),
    "run": (Run, ("results", "stats")),
}
"""Keys of each kind of JSON document, of which the first holds its results."""
_HINT = (
    "give what trtla bench --json, bench --ablation, tune --json, summarize --json or run --json "
    "printed, or a CSV file of bench"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A document and the file that it came from."""

    number: int
    """The number of the document on the page, from 1."""
    name: str
    """The file's name, without its folder."""
    kind: Kind
    document: Document


def read_all(paths: Sequence[Path]) -> list[Source]:
    """Read every file."""
    return [_read(number, path) for number, path in enumerate(paths, 1)]


def _read(number: int, path: Path) -> Source:
    kind, values = _recognise(path, read_text(path))
    model, (part, *_) = _KINDS[kind]
    try:
        document = model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        fault = "it is missing" if first["type"] == "missing" else f"it must be {needed(first)}"
        raise UsageError(f"{path} has {field or 'a value'} wrong: {fault}", _HINT) from None
    if not getattr(document, part):
        raise UsageError(f"{path} holds no results: its {part} are empty", _HINT)
    if not isinstance(document, Run) and not whole_category(document.rows):
        raise UsageError(f"{path} has no rows over all categories", _HINT)
    return Source(number, path.name, kind, document)


def _recognise(path: Path, text: str) -> tuple[Kind, Any]:
    """Return the kind of a document and its unchecked values."""
    if not text.strip():
        raise UsageError(f"{path} is empty", _HINT)
    if not text.lstrip().startswith(("{", "[")):
        return _table(path, text)
    try:
        value = parse_json(text)
    except JsonError as error:
        raise UsageError(f"{path} is not a JSON document: {error}", _HINT) from None
    keys = set(value) if isinstance(value, dict) else set()
    if keys == {"error"}:
        raise UsageError(f"{path} reports an error, not results", "run that command again")
    for kind, (_, needed_keys) in _KINDS.items():
        if keys.issuperset(needed_keys):
            return kind, value
    raise UsageError(f"{path} is no document of trtla that a report is made of", _HINT)


def _table(path: Path, text: str) -> tuple[Kind, Any]:
    try:
        reader = csv.DictReader(io.StringIO(text))
        columns = set(reader.fieldnames or ())
        rows = [row for row in reader if None not in row and None not in row.values()]
    except csv.Error as error:
        raise UsageError(f"{path} has a wrong cell: {sentence(error)}", _HINT) from None
    if not columns.issuperset(("arm", "category", "speedup_vs_ar")):
        raise UsageError(f"{path} is neither a JSON document nor a table of trtla bench", _HINT)
    values = [{key: cell or None for key, cell in row.items()} for row in rows]
    first = values[0] if values else {}
    return "bench", {
        "environment": {key: first.get(key) for key in CSV_ENVIRONMENT},
        "settings": {"model": first.get("model")},
        "rows": values,
    }
