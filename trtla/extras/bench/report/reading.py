"""Reading of result files: each document is recognised by its content, other files are refused.

A JSON object is recognised by its keys, a CSV table by its columns.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trtla.errors import UsageError, needed, sentence
from trtla.extras.bench.documents import CSV_ENVIRONMENT, Bench, whole_category
from trtla.extras.bench.tune.documents import Tune
from trtla.files import JsonError, parse_json, read_text
from trtla.results.rows import Document, Summarize

_KINDS: dict[type[Document], tuple[str, ...]] = {
    Bench: ("rows", "cells"),
    Tune: ("rows", "recommendation"),
    Summarize: ("rows", "items"),
}
"""Keys of each kind of JSON document."""
_HINT = (
    "give what trtla bench --json, tune --json or summarize --json printed, or a CSV file of bench"
)


def read(path: Path) -> Document:
    """Read a result file."""
    kind, values = _recognise(path, read_text(path))
    try:
        document = kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        fault = "it is missing" if first["type"] == "missing" else f"it must be {needed(first)}"
        raise UsageError(f"{path} has {field or 'a value'} wrong: {fault}", _HINT) from None
    if not any(row.tokens_per_s is not None for row in document.rows):
        raise UsageError(f"{path} holds no measured results", _HINT)
    if whole_category(document.rows) is None:
        raise UsageError(f"{path} has no rows over all categories", _HINT)
    return document


def _recognise(path: Path, text: str) -> tuple[type[Document], Any]:
    """Return the kind of a document and its unchecked values."""
    if not text.strip():
        raise UsageError(f"{path} is empty", _HINT)
    if not text.lstrip().startswith(("{", "[")):
        return Bench, _table(path, text)
    try:
        value = parse_json(text)
    except JsonError as error:
        raise UsageError(f"{path} is not a JSON document: {error}", _HINT) from None
    keys = set(value) if isinstance(value, dict) else set()
    if keys == {"error"}:
        raise UsageError(f"{path} reports an error, not results", "run that command again")
    for kind, known in _KINDS.items():
        if keys.issuperset(known):
            return kind, value
    raise UsageError(f"{path} is no document of trtla that a report is made of", _HINT)


def _table(path: Path, text: str) -> dict[str, Any]:
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
    return {
        "environment": {key: first.get(key) for key in CSV_ENVIRONMENT},
        "settings": {"model": first.get("model")},
        "rows": values,
    }
