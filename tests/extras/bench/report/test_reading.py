"""Documents are known by their content; what is none of them is refused in one sentence."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tests.support import documents
from tests.support.documents import put
from trtla.errors import UsageError
from trtla.extras.bench.report.reading import read


def as_csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def test_every_kind_is_known_by_its_content(tmp_path: Path) -> None:
    paths = [put(tmp_path, f"{i}.txt", d) for i, d in enumerate(documents.everything().values())]
    found = [type(read(path)).__name__ for path in paths]
    assert found == ["Bench", "Bench", "Tune", "Summarize"]


def test_a_table_of_bench_gives_what_its_document_gives(tmp_path: Path) -> None:
    found = documents.bench()
    table = [{**row, "cpu": "AMD EPYC", "cores": 2, "model": "m"} for row in found["rows"]]
    first, second = (
        read(put(tmp_path, *file)) for file in (("b.json", found), ("b.csv", as_csv(table)))
    )
    assert [row.speedup_vs_ar for row in first.rows] == [row.speedup_vs_ar for row in second.rows]
    assert (second.rows[0].device, second.model) == ("cpu", "m")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("{", "not a JSON document"),
        ("[1]", "no document of trtla"),
        ('{"rows": 1}', "no document of trtla"),
        ('{"error": {"message": "m"}}', "an error"),
        ("a,b\n1,2\n", "neither"),
        ("arm,category,speedup_vs_ar\n", "no measured results"),
        ('{"rows": [], "items": 1}', "no measured results"),
        ('{"results": [], "stats": {}}', "no document of trtla"),
        ('{"items": 1, "rows": [{"arm": "trtla", "time_s": NaN, "tokens_per_s": 1}]}', "NaN"),
        (
            '{"sides": [{"name": "trtla", "latency_s": 1, "tokens_per_s": 1}]}',
            "no document of trtla",
        ),
        ('{"means": [{"method": "ar"}]}', "no document of trtla"),
        ("run_id,method,speedup_vs_ar\n1,ar,1\n", "neither"),
        ('{"rows": [{"arm": "ar"}], "cells": []}', "rows.0.temperature"),
        ("\x00\x01", "neither"),
        (f"arm,category,speedup_vs_ar\n{'x' * 140_000},b,1\n", "wrong cell"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: str, said: str) -> None:
    path = put(tmp_path, "odd.json", content)
    with pytest.raises(UsageError, match=said) as caught:
        read(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_document_without_rows_over_all_categories_is_refused(tmp_path: Path) -> None:
    found = documents.bench()
    found["rows"] = [row for row in found["rows"] if row["category"] != "all"]
    with pytest.raises(UsageError, match="has no rows over all categories"):
        read(put(tmp_path, "bench.json", found))


def test_files_that_are_no_text_or_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x80")
    for name in ("b.json", "absent.json", "."):
        with pytest.raises(UsageError, match=r"UTF-8|does not exist|cannot be read") as caught:
            read(tmp_path / name)
        assert str(tmp_path / name) in caught.value.message
