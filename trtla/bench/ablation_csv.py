"""The ablation's files: rows appended as they come, read again after an interruption; the means.

A row is on disk before the next one begins. A line that a killed process left half-written is
dropped when the file is opened again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from trtla.bench.ablation_rows import COLUMNS, FIGURES, SETTING, Cells, number
from trtla.errors import UsageError
from trtla.files import write_whole

MEANS_COLUMNS = (
    *SETTING,
    "task",
    "rows",
    *(f"{figure}_{kind}" for figure in FIGURES for kind in ("mean", "std")),
)
"""Of the second file: a mean over all rows of a setting and task, and the deviation of the
repeats' own means, empty where there is one repeat."""


class RowFile:
    """A CSV file of rows that grows.

    Raises:
        UsageError: the file is there and is not such a table, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = {row["run_id"]: row for row in _read(path)}
        """By run_id, those of earlier runs included."""

    def __contains__(self, run_id: str) -> bool:
        return run_id in self.rows

    def append(self, row: Cells) -> None:
        """Add a row; it is handed to the system in one piece."""
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(_line(COLUMNS, row))
        self.rows[row["run_id"]] = row


def _read(path: Path) -> list[Cells]:
    """The complete rows of a file, which is made or mended where it has to be."""
    header = _line(COLUMNS, dict(zip(COLUMNS, COLUMNS, strict=True)))
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if not header.startswith(text) and not whole.startswith(header):
            raise UsageError(f"{path} is not an ablation's table", "give another --output")
        if not whole or whole != text:
            write_whole(path, whole or header)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be used: {error}", "give another --output") from None
    return [row for row in csv.DictReader(io.StringIO(whole)) if None not in row.values()]


def _line(columns: Sequence[str], row: Mapping[str, str]) -> str:
    out = io.StringIO()
    csv.DictWriter(out, columns, lineterminator="\n").writerow(row)
    return out.getvalue()


def means_path(path: Path) -> Path:
    """Where the means of a file go: results.csv -> results_means.csv."""
    return path.with_name(f"{path.stem}_means{path.suffix}")


def grouped(rows: Iterable[Cells]) -> list[list[Cells]]:
    """The rows of each setting and task, in the order in which these first come."""
    groups: dict[tuple[str, ...], list[Cells]] = {}
    for row in rows:
        key = tuple(row[column] for column in (*SETTING, "task"))
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def means(rows: Iterable[Cells]) -> list[Cells]:
    """One row a setting and task."""
    return [
        {
            **{column: members[0][column] for column in (*SETTING, "task")},
            "rows": str(len(members)),
            **_mean_cells(members),
        }
        for members in grouped(rows)
    ]


def _mean_cells(members: Sequence[Cells]) -> Cells:
    cells: Cells = {}
    for figure in FIGURES:
        repeats: dict[str, list[float]] = {}
        for row in members:
            value = number(row[figure])
            if value is not None:
                repeats.setdefault(row["repeat"], []).append(value)
        found = [value for values in repeats.values() for value in values]
        own = [mean(values) for values in repeats.values()]
        cells[f"{figure}_mean"] = f"{mean(found):.6g}" if found else ""
        cells[f"{figure}_std"] = f"{stdev(own):.6g}" if len(own) > 1 else ""
    return cells


def means_text(rows: Iterable[Cells]) -> str:
    """The second file."""
    out = io.StringIO()
    writer = csv.DictWriter(out, MEANS_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(means(rows))
    return out.getvalue()
