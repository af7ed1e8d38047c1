"""Tables: bench's rows as one JSON document, CSV rows or Markdown; an ablation's rows and means."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby, zip_longest
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from trtla.bench.arms import LLAMA_CPP, ArmRun
from trtla.bench.journal import fingerprint
from trtla.console import TableText, counted, markdown
from trtla.console import cell as shown
from trtla.data.prompt_sets import Ids
from trtla.results.bench_documents import (
    AblationFigures,
    AblationSetting,
    Bench,
    BenchRow,
    BenchSettings,
    Cell,
)
from trtla.results.documents import SCHEMA_VERSION, SourceRow
from trtla.results.metrics import agreement, too_short, total
from trtla.settings.sampling import filters_text

if TYPE_CHECKING:
    from trtla.bench.sweep import Results, Sweep


def csv_lines(
    columns: Sequence[str], rows: Iterable[Mapping[str, object]], *, header: bool = False
) -> str:
    """Rows as CSV, below the columns' names if wanted."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


_FIGURES = {
    "arm": "arm",
    "weight_type": "weights",
    "tokens_per_s": "tokens/s",
    "range": "min-max",
    "ttft_ms": "TTFT ms",
    "ms_per_token": "ms/token",
    "tokens_per_step": "S",
    "speedup_vs_ar": "speed-up",
    "efficiency": "efficiency",
    "fed_per_step": "fed/step",
    "host_ms_per_step": "host ms/step",
    "read_gb_per_s": "GB/s",
    "share_of_bandwidth": "of bandwidth",
    "peak_memory_mb": "peak MB",
    "distinct_4grams": "distinct 4-grams",
    "agreement": "texts as ar",
}
_SOURCE_FIGURES = (
    "proposed", "fed", "accepted", "expected", "calibration", "accepted/fed by depth"
)  # fmt: skip
_DEPTHS = 8  # that are shown
_EXACT = ("tokens_per_s", "peak_memory_mb", "ttft_ms")  # shown with fewer digits


def document(results: Results, sweep: Sweep, found: dict[str, Any]) -> dict[str, Any]:
    """The JSON document, with the environment that was found."""
    settings = BenchSettings.fill(results, sweep, sweep.sampling)
    filled = Bench.fill(
        results, schema_version=SCHEMA_VERSION, environment=found, settings=settings
    )
    return filled.document()


def csv_text(results: Results, found: dict[str, Any]) -> str:
    """One line an arm and cell, with the environment in the last columns."""
    extra = {
        key: found[key] for key in ("cpu", "cores", "torch", "transformers", "trtla", "commit")
    }
    lines = [{**row.document(), **extra} for row in results.rows]
    for line in lines:
        if line["sources"] is not None:
            line["sources"] = json.dumps(line["sources"])
    return csv_lines(list(lines[0]), lines, header=True)


def results_text(
    results: Results, sweep: Sweep, found: dict[str, Any], table: TableText = markdown
) -> str:
    """The circumstances in a few lines, then a table for each cell."""
    parts = [_head(results, sweep, found)]
    for cell, members in groupby(results.rows, key=lambda row: Cell.fill(row)):
        rows = list(members)
        cells = [[_shown(row, key) for key in _FIGURES] for row in rows]
        parts.append(f"{_title(cell)}\n\n{table(list(_FIGURES.values()), cells)}")
        parts += [_sources_table(row.arm, row.sources, table) for row in rows if row.sources]
        short = {row.arm: too_short(row.texts, row.output_tokens) for row in rows}
        parts += [f"{arm}: {why}." for arm, why in short.items() if why]
    return "\n\n".join(parts)


def _head(results: Results, sweep: Sweep, found: dict[str, Any]) -> str:
    gpus = f", {', '.join(found['gpus'])}" if found["gpus"] else ""
    ends = "ignored" if sweep.ignore_eos else "respected"
    bandwidth = {c.threads: c.read_bandwidth_gb_per_s for c in results.cells}
    speeds = ", ".join(f"{gb:.1f} GB/s with {counted(n, 'thread')}" for n, gb in bandwidth.items())
    cores, length = counted(found["cores"], "core"), counted(sweep.sampling.max_output_len, "token")
    llama_cpp = any(name in LLAMA_CPP for name in sweep.peers)
    peer = f", llama-cpp-python {found['llama_cpp_python']}" if llama_cpp else ""
    return "\n".join(
        (
            f"`{found['command']}`",
            "",
            f"- machine: {cores} of {found['cpu']}{gpus}; read bandwidth {speeds}",
            f"- versions: trtla {found['trtla']} ({found['commit'] or 'no checkout'}), Python "
            f"{found['python']}, torch {found['torch']}, transformers {found['transformers']}"
            f"{peer}",
            f"- engine: {', '.join(results.executors)}; {length} a "
            f"prompt, end tokens {ends}, {counted(sweep.rounds, 'round')} alternating, medians",
        )
    )


def _title(cell: Cell) -> str:
    filters = filters_text(cell.temperature, cell.top_k, cell.top_p)
    length = f", prompts of {counted(cell.prompt_len, 'token')}" if cell.prompt_len else ""
    return (
        f"**{cell.category}, {filters}, batch {cell.batch_size}** "
        f"({cell.executor}, {counted(cell.threads, 'thread')}{length})"
    )


def _sources_table(arm: str, sources: Mapping[str, SourceRow], table: TableText) -> str:
    """What came of each source's nodes, and of all."""
    counts = {name: own.counts for name, own in sources.items()}
    counts["all"] = total(counts.values())
    cells = []
    for name, own in counts.items():
        pairs = zip_longest(own.accepted[:_DEPTHS], own.fed[:_DEPTHS], fillvalue=0)
        depths = " ".join(f"{accepted}/{fed}" for accepted, fed in pairs)
        more = " ..." * (len(own.fed) > _DEPTHS)
        sums = [str(sum(counts)) for counts in (own.proposed, own.fed, own.accepted)]
        cells.append([name, *sums, f"{own.expected:.1f}", shown(own.calibration), depths + more])
    return table([f"sources of {arm}", *_SOURCE_FIGURES], cells)


def _shown(row: BenchRow, key: str) -> str:
    if key == "arm":
        return f"{row.arm} ({row.setting})" if row.setting else row.arm
    if key == "weight_type":
        own = row.weight_type or "-"
        return own if row.compute_type in (None, own) else f"{own} in {row.compute_type}"
    if key == "range":
        return f"{row.tokens_per_s_min:.0f}-{row.tokens_per_s_max:.0f}"
    if key == "agreement":
        equal, at = f"{row.equal_texts} of {row.texts}", row.first_divergence
        equal = equal if at is None else f"{equal} (from {at})"
        return "-" if row.equal_texts is None else equal
    value = getattr(row, key)
    if key in _EXACT and value is not None:
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return shown(value)


Cells = dict[str, str]
"""An ablation's row as texts; empty: the column does not apply, or the figure cannot be had."""

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
        output_sha256=sha256(" ".join(map(str, run.outputs[0])).encode()).hexdigest(),
        same_as_ar=agreement(run, plain)["equal_texts"] == 1,
        rouge_l=rouge_l,
        perplexity=perplexity,
    )


def row_of(settings: Mapping[str, object], figures: AblationFigures) -> Cells:
    """A whole row; settings that are no columns count for its run_id alone."""
    values = {**settings, "run_id": fingerprint(settings), **dict(figures)}
    return {column: _cell(values.get(column)) for column in COLUMNS}


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


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


def means_text(rows: Iterable[Cells]) -> str:
    """The second file."""
    found = means(rows)
    return csv_lines(list(found[0]), found, header=True)
