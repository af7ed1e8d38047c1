"""The ablation's tables: their columns, the file of rows, and the means. Nothing here decodes.

A cell is a text; empty means that the column does not apply, or that the figure cannot be had. A
row is on disk before the next one begins. A line that a killed process left half-written is dropped
when the file is opened again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from trtla.bench.arms import Run
from trtla.bench.figures import agreement, tokens_per_s, ttft_ms
from trtla.data.prompt_sets import Ids
from trtla.errors import UsageError
from trtla.files import write_whole

Cells = dict[str, str]


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a row's figures are made from; None where something cannot be had."""

    prompt: Ids
    run: Run
    plain: Run
    """The same prompt's plain decoding in this process."""
    rouge_l: float | None
    """F-measure x100 against the prompt's reference, where it has one."""
    perplexity: float | None
    """The target's own of the text, at temperature 1 without filters."""


SETTING = (
    "method", "gamma_policy", "gamma", "gamma_min", "gamma_max", "ema_beta", "ngram_kind",
    "ngram_n", "top_k_filler", "window", "ngram", "guesses", "model", "drafter", "backend",
    "device", "dtype", "use_cache", "processor", "temperature", "top_k", "top_p",
)  # fmt: skip
"""What tells an arm's settings apart from another's."""
TEXTS = (
    "method", "gamma_policy", "ngram_kind", "model", "drafter", "backend", "device", "dtype",
    "processor", "task",
)  # fmt: skip
"""Settings that are no numbers, and the task."""
_MEASURED: dict[str, Callable[[Decoding], object]] = {
    "prompt_tokens": lambda one: len(one.prompt),
    "new_tokens": lambda one: one.run.output_tokens,
    "steps": lambda one: one.run.steps,
    "drafter_forwards": lambda one: getattr(one.run.draft_model, "forwards", None),
    "drafted": lambda one: one.run.drafted,
    "accepted": lambda one: one.run.accepted,
    "acceptance_rate": lambda one: _ratio(one.run.accepted, one.run.drafted),
    "tokens_per_step": lambda one: 1.0 + (_ratio(one.run.accepted, one.run.steps) or 0.0),
    "mean_gamma": lambda one: getattr(one.run.draft_model, "mean_gamma", None),
    "mean_h_norm": lambda one: getattr(one.run.draft_model, "mean_entropy", None),
    "time_s": lambda one: one.run.wall_s,
    "ttft_ms": lambda one: ttft_ms(one.run),
    "tokens_per_s": lambda one: tokens_per_s(one.run),
    "ms_per_token": lambda one: 1000.0 / tokens_per_s(one.run),
    "speedup_vs_ar": lambda one: tokens_per_s(one.run) / tokens_per_s(one.plain),
    "peak_mem_mib": lambda one: round(one.run.peak_bytes / 2**20, 1),
    "finish_reason": lambda one: one.run.reasons[0],
    "output_sha256": lambda one: _sha256(" ".join(map(str, one.run.outputs[0]))),
    "same_as_ar": lambda one: agreement(one.run, one.plain)["equal_texts"] == 1,
    "rouge_l": lambda one: one.rouge_l,
    "perplexity": lambda one: one.perplexity,
}
COLUMNS = ("run_id", *SETTING, "seed", "repeat", "task", "prompt_id", *_MEASURED)
"""One row is one decoding: an arm with one setting, on one prompt, once."""
FIGURES = tuple(name for name in _MEASURED if name not in ("finish_reason", "output_sha256"))
"""What has a mean."""
_SWITCHES = ("true", "false")


def run_id(settings: Mapping[str, object]) -> str:
    """A name for a row, made from all that its text and its arm depend on."""
    return _sha256(json.dumps(settings, sort_keys=True, default=str))[:16]


def row_of(settings: Mapping[str, object], found: Decoding) -> Cells:
    """A whole row; settings that are no columns are left out."""
    figures = {name: figure(found) for name, figure in _MEASURED.items()}
    values = {**settings, "run_id": run_id(settings), **figures}
    return {column: _shown(values.get(column)) for column in COLUMNS}


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _shown(value: object) -> str:
    """A value as a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def typed(column: str, cell: str) -> object:
    """A cell as a value: a number, true or false, a text, or None for an empty one."""
    if column in TEXTS or not cell:
        return cell or None
    if cell in _SWITCHES:
        return cell == "true"
    return int(cell) if cell.isdecimal() else float(cell)


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
            file.write(_csv(COLUMNS, [row]))
        self.rows[row["run_id"]] = row


def _read(path: Path) -> list[Cells]:
    """The complete rows of a file, which is made or mended where it has to be."""
    header = _csv(COLUMNS, [], header=True)
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


def _csv(columns: Sequence[str], rows: Iterable[Cells], *, header: bool = False) -> str:
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
                value = float(cell == "true" if cell in _SWITCHES else cell)
                repeats.setdefault(row["repeat"], []).append(value)
        found = [value for values in repeats.values() for value in values]
        own = [mean(values) for values in repeats.values()]
        cells[f"{figure}_mean"] = f"{mean(found):.6g}" if found else ""
        cells[f"{figure}_std"] = f"{stdev(own):.6g}" if len(own) > 1 else ""
    return cells


def means_text(rows: Iterable[Cells]) -> str:
    """The second file."""
    found = means(rows)
    return _csv(list(found[0]), found, header=True)
