"""Views of rows: one JSON document, CSV lines, Markdown tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from trtla.bench.arms import LLAMA_CPP
from trtla.console import TableText, counted, markdown
from trtla.console import cell as shown
from trtla.results.bench_documents import Bench, BenchSettings, Cell, Row
from trtla.results.documents import SCHEMA_VERSION, Part, SourceRow
from trtla.results.metrics import too_short, total
from trtla.settings.sampling import filters_text

if TYPE_CHECKING:
    from trtla.bench.sweep import Results, Sweep


_FIGURES = {
    "arm": "arm",
    "weight_type": "weights",
    "tokens_per_s": "tokens/s",
    "range": "min-max",
    "ttft_ms": "TTFT ms",
    "ms_per_token": "ms/token",
    "tokens_per_step": "S",
    "acceptance_rate": "acceptance",
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
_SCORES = {"rougeL": "ROUGE-L", "perplexity": "perplexity"}
"""Shown if a row has them."""
_SOURCE_FIGURES = (
    "proposed", "fed", "accepted", "expected", "calibration", "accepted/fed by depth"
)  # fmt: skip
_DEPTHS = 8  # that are shown
_ENVIRONMENT = ("cpu", "cores", "torch", "transformers", "trtla", "commit")
_EXACT = ("tokens_per_s", "peak_memory_mb", "ttft_ms")  # shown with fewer digits


def document(results: Results, sweep: Sweep, found: dict[str, Any]) -> dict[str, Any]:
    """The JSON document, with the environment that was found."""
    settings = BenchSettings.fill(results, sweep, sweep.sampling)
    filled = Bench.fill(
        results, schema_version=SCHEMA_VERSION, environment=found, settings=settings
    )
    return filled.document()


def csv_text(results: Results, sweep: Sweep, found: dict[str, Any]) -> str:
    """One line an arm and cell, with the model and the environment in the last columns."""
    extra = {"model": sweep.model}
    extra |= {key: found[key] for key in _ENVIRONMENT}
    return rows_text(results.rows, extra)


def rows_text(rows: Sequence[Part], extra: Mapping[str, object] = {}) -> str:
    """Rows as CSV, below the columns' names; a list or a dictionary is JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = type(rows[0]).model_fields
    writer.writerow([*columns, *extra])
    for row in rows:
        values = {**row.document(), **extra}
        cells = (values.get(name) for name in (*columns, *extra))
        writer.writerow(json.dumps(one) if isinstance(one, list | dict) else one for one in cells)
    return out.getvalue()


def results_text(
    results: Results, sweep: Sweep, found: dict[str, Any], table: TableText = markdown
) -> str:
    """The circumstances in a few lines, then a table for each cell."""
    parts = [_head(results, sweep, found)]
    for cell, members in groupby(results.rows, key=lambda row: Cell.fill(row)):
        rows = list(members)
        scores = (name for name in _SCORES if any(getattr(row, name) is not None for row in rows))
        columns = _FIGURES | {name: _SCORES[name] for name in scores}
        cells = [[_shown(row, key) for key in columns] for row in rows]
        parts.append(f"{_title(cell)}\n\n{table(list(columns.values()), cells)}")
        names = [_shown(row, "arm") for row in rows]
        parts += [
            _sources_table(name, row.sources, table)
            for name, row in zip(names, rows, strict=True)
            if row.sources
        ]
        texts = (too_short(row.texts, row.output_tokens) for row in rows)
        short = dict(zip(names, texts, strict=True))
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


def _shown(row: Row, key: str) -> str:
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
