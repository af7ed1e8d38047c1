"""The ablation's tables: their columns, the file of rows, and the means.

A cell is a text; empty means that the column does not apply, or that the figure cannot be had. A
row is on disk before the next one begins. A line that a killed process left half-written is dropped
when the file is opened again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from trtla.bench.arms import Run
from trtla.data.prompt_sets import Ids
from trtla.errors import UsageError
from trtla.files import write_whole
from trtla.results.bench_documents import AblationFigures, AblationRow, AblationSetting
from trtla.results.metrics import agreement

Cells = dict[str, str]


SETTING = tuple(AblationSetting.model_fields)
"""The columns that identify an arm's settings."""
_MEASURED = tuple(AblationFigures.model_fields)
COLUMNS = ("run_id", *SETTING, "seed", "repeat", "task", "prompt_id", *_MEASURED)
"""One row is one decoding: an arm with one setting, on one prompt, once."""
FIGURES = tuple(name for name in _MEASURED if name not in ("finish_reason", "output_sha256"))
"""What has a mean."""


def figures_of(
    run: Run, plain: Run, prompt: Ids, rouge_l: float | None, perplexity: float | None
) -> AblationFigures:
    """What a decoding gave, beside the same prompt's plain decoding in this process."""
    drafts = run.draft_model
    return AblationFigures.fill(
        run,
        prompt_tokens=len(prompt),
        new_tokens=run.output_tokens,
        drafter_forwards=drafts.forwards if drafts else None,
        mean_gamma=drafts.mean_gamma if drafts else None,
        mean_h_norm=drafts.mean_entropy if drafts else None,
        ms_per_token=1000.0 / run.tokens_per_s,
        speedup_vs_ar=run.tokens_per_s / plain.tokens_per_s,
        peak_mem_mib=round(run.peak_bytes / 2**20, 1),
        finish_reason=run.reasons[0],
        output_sha256=_sha256(" ".join(map(str, run.outputs[0]))),
        same_as_ar=agreement(run, plain)["equal_texts"] == 1,
        rouge_l=rouge_l,
        perplexity=perplexity,
    )


_SWITCHES = {"true": 1.0, "false": 0.0}


def run_id(settings: Mapping[str, object]) -> str:
    """A name for a row, made from all that its text and its arm depend on."""
    return _sha256(json.dumps(settings, sort_keys=True, default=str))[:16]


def row_of(settings: Mapping[str, object], figures: AblationFigures) -> Cells:
    """A whole row; settings that are no columns are left out."""
    values = {**settings, "run_id": run_id(settings), **dict(figures)}
    return {column: _shown(values.get(column)) for column in COLUMNS}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _shown(value: object) -> str:
    """A value as a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class RowFile:
    """A CSV file of rows that grows.

    Raises:
        UsageError: the file is there and is not such a table, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = {row["run_id"]: row for row in _read(path)}
        """By run_id, those of earlier runs included."""

    def append(self, row: Cells) -> None:
        """Add a row; it is handed to the system in one piece."""
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(csv_lines(COLUMNS, [row]))
        self.rows[row["run_id"]] = row


def _read(path: Path) -> list[Cells]:
    """The complete rows of a file, which is made or mended where it has to be."""
    header = csv_lines(COLUMNS, [], header=True)
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


def csv_lines(
    columns: Sequence[str], rows: Iterable[Mapping[str, object]], *, header: bool = False
) -> str:
    """Rows as CSV, below the columns' names if asked for."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
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
    """One row a setting and task: the mean over all its rows, and the deviation of the repeats' own
    means, empty where there is one repeat."""
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
            if cell := row[figure]:
                value = float(_SWITCHES.get(cell, cell))
                repeats.setdefault(row["repeat"], []).append(value)
        found = [value for values in repeats.values() for value in values]
        own = [mean(values) for values in repeats.values()]
        cells[f"{figure}_mean"] = f"{mean(found):.6g}" if found else ""
        cells[f"{figure}_std"] = f"{stdev(own):.6g}" if len(own) > 1 else ""
    return cells


def typed(row: Mapping[str, str], **beside: object) -> AblationRow:
    """A row of means as values, empty cells as None, and what no cell holds; for JSON."""
    values = {name: cell or None for name, cell in row.items()}
    return AblationRow.model_validate({**values, **beside})


def means_text(rows: Iterable[Cells]) -> str:
    """The second file."""
    found = means(rows)
    return csv_lines(list(found[0]), found, header=True)
