"""Bench's rows as one JSON document, CSV rows, or Markdown tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from trtla.bench.arms import LLAMA_CPP
from trtla.console import cell as shown
from trtla.console import counted, markdown
from trtla.results.bench_documents import Bench, BenchRow, BenchSettings, Cell
from trtla.results.documents import SCHEMA_VERSION, SourceRow
from trtla.results.metrics import too_short, total
from trtla.runtime.stats import SourceCounts
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


def markdown_text(results: Results, sweep: Sweep, found: dict[str, Any]) -> str:
    """The circumstances in a few lines, then a table for each cell."""
    parts = [_head(results, sweep, found)]
    for cell, members in groupby(results.rows, key=lambda row: Cell.fill(row)):
        rows = list(members)
        parts.append(f"{_title(cell)}\n\n{_table(rows)}")
        parts += [sources_table(row.arm, row.sources) for row in rows if row.sources]
        parts += [f"{row.arm}: {short}." for row in rows if (short := short_texts(row))]
    return "\n\n".join(parts)


def _head(results: Results, sweep: Sweep, found: dict[str, Any]) -> str:
    gpus = f", {', '.join(found['gpus'])}" if found["gpus"] else ""
    ends = "ignored" if sweep.ignore_eos else "respected"
    bandwidth = {c.threads: c.read_bandwidth_gb_per_s for c in results.cells}
    speeds = ", ".join(f"{gb:.1f} GB/s with {counted(n, 'thread')}" for n, gb in bandwidth.items())
    llama_cpp = any(name in LLAMA_CPP for name in sweep.peers)
    peer = f", llama-cpp-python {found['llama_cpp_python']}" if llama_cpp else ""
    return "\n".join(
        (
            f"`{found['command']}`",
            "",
            f"- machine: {found['cores']} cores of {found['cpu']}{gpus}; read bandwidth {speeds}",
            f"- versions: trtla {found['trtla']} ({found['commit'] or 'no checkout'}), Python "
            f"{found['python']}, torch {found['torch']}, transformers {found['transformers']}"
            f"{peer}",
            f"- engine: {', '.join(results.executors)}; {sweep.sampling.max_output_len} tokens a "
            f"prompt, end tokens {ends}, {counted(sweep.rounds, 'round')} alternating, medians",
        )
    )


def short_texts(row: BenchRow) -> str | None:
    """What is wrong with a row whose texts ended at once."""
    return too_short(row.texts, row.output_tokens)


def _title(cell: Cell) -> str:
    filters = filters_text(cell.temperature, cell.top_k, cell.top_p)
    length = f", prompts of {cell.prompt_len} tokens" if cell.prompt_len else ""
    return (
        f"**{cell.category}, {filters}, batch {cell.batch_size}** "
        f"({cell.executor}, {counted(cell.threads, 'thread')}{length})"
    )


def _table(members: Iterable[BenchRow]) -> str:
    cells = [[_shown(row, key) for key in _FIGURES] for row in members]
    return markdown(list(_FIGURES.values()), cells)


def sources_table(arm: str, sources: Mapping[str, SourceRow]) -> str:
    """What came of each source's nodes, and of all."""
    counts = {name: own.counts for name, own in sources.items()}
    counts["all"] = total(counts.values())
    cells = [[name, *_source_cells(own)] for name, own in counts.items()]
    return markdown([f"sources of {arm}", *_SOURCE_FIGURES], cells)


def _source_cells(own: SourceCounts) -> list[str]:
    pairs = zip_longest(own.accepted[:_DEPTHS], own.fed[:_DEPTHS], fillvalue=0)
    depths = " ".join(f"{accepted}/{fed}" for accepted, fed in pairs)
    more = " ..." * (len(own.fed) > _DEPTHS)
    sums = [sum(own.proposed), sum(own.fed), sum(own.accepted)]
    return [*map(str, sums), f"{own.expected:.1f}", shown(own.calibration), depths + more]


def _shown(row: BenchRow, key: str) -> str:
    if key == "arm":
        return f"{row.arm} ({row.setting})" if row.setting else row.arm
    if key == "weight_type":
        own = row.weight_type or "-"
        return own if row.compute_type in (None, own) else f"{own} in {row.compute_type}"
    if key == "range":
        return f"{row.tokens_per_s_min:.0f}-{row.tokens_per_s_max:.0f}"
    if key == "agreement":
        return "-" if row.equal_texts is None else _agreement(row)
    value = getattr(row, key)
    if key in _EXACT and value is not None:
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return shown(value)


def _agreement(row: BenchRow) -> str:
    equal = f"{row.equal_texts} of {row.texts}"
    at = row.first_divergence
    return equal if at is None else f"{equal} (from {at})"
