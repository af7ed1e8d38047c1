"""The ablation's tables: their columns, the rows, and the means.

A cell is a text; empty means that the column does not apply, or that the figure cannot be had.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from trtla.bench.arms import ArmRun
from trtla.bench.tables import csv_lines
from trtla.data.prompt_sets import Ids
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
_SWITCHES = {"true": 1.0, "false": 0.0}


def figures_of(
    run: ArmRun, plain: ArmRun, prompt: Ids, rouge_l: float | None, perplexity: float | None
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


def run_id(settings: Mapping[str, object]) -> str:
    """A name for a row, made from all that its text and its arm depend on."""
    return _sha256(json.dumps(settings, sort_keys=True, default=str))[:16]


def row_of(settings: Mapping[str, object], figures: AblationFigures) -> Cells:
    """A whole row; settings that are no columns are left out."""
    values = {**settings, "run_id": run_id(settings), **dict(figures)}
    return {column: _cell(values.get(column)) for column in COLUMNS}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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


def typed(row: Mapping[str, str], **more: object) -> AblationRow:
    """A row of means as values, empty cells as None, and what no cell holds; for JSON."""
    values = {name: cell or None for name, cell in row.items()}
    return AblationRow.model_validate({**values, **more})


def means_text(rows: Iterable[Cells]) -> str:
    """The second file."""
    found = means(rows)
    return csv_lines(list(found[0]), found, header=True)
