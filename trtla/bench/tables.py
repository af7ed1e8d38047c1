"""Views of rows: one JSON document, CSV lines, Markdown tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from trtla.bench.arms import LLAMA_CPP
from trtla.console import TableText, counted, markdown
from trtla.console import cell as shown
from trtla.formats.gguf.folder import model_name
from trtla.results.bench_documents import CSV_ENVIRONMENT, Bench, Row
from trtla.results.documents import SCHEMA_VERSION, Part, SourceRow
from trtla.results.metrics import too_short, total
from trtla.settings.sampling import filters_text

if TYPE_CHECKING:
    from trtla.bench.sweep import Results, Sweep


ALL_COLUMNS = {
    "arm": "arm",
    "completed": "completed",
    "failed": "failed",
    "request_throughput": "requests/s",
    "tokens_per_s": "tokens/s",
    "total_token_throughput": "all tokens/s",
    "tokens_per_step": "S",
    "acceptance_rate": "acceptance",
    "speedup_vs_ar": "median speed-up",
    "predicted_speedup": "predicted speed-up",
    "agreement": "texts as ar",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "ttft_ms": "TTFT ms",
    "ms_per_token": "ms/token",
    "range": "min-max",
    "weight_type": "weights",
    "efficiency": "efficiency",
    "fed_per_step": "fed/step",
    "host_ms_per_step": "host ms/step",
    "read_gb_per_s": "GB/s",
    "share_of_bandwidth": "of bandwidth",
    "peak_memory_mb": "peak MB",
    "distinct_4grams": "distinct 4-grams",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "perplexity": "perplexity",
}
"""The columns of a table, the most important first; each is shown if a row has it."""
USUAL = (*("arm", "tokens_per_s", "tokens_per_step", "speedup_vs_ar", "agreement", "ttft_ms"),)
"""The columns of most use; --wide prints all."""
_SPREADS = ("ttft", "tpot", "itl", "e2el")
_SOURCE_FIGURES = (
    "proposed", "fed", "accepted", "expected", "calibration", "accepted/fed by depth"
)  # fmt: skip
_SHOWN_DEPTHS = 8
_EXACT = ("tokens_per_s", "peak_memory_mb", "ttft_ms")  # shown with fewer digits


def document(results: Results, sweep: Sweep, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON document of a sweep."""
    names = ("max_output_len", "seed", *sweep.sampling.beyond)
    settings = {
        "model": model_name(sweep.model),
        "executors": results.executors,
        "rounds": sweep.rounds,
        "ignore_eos": sweep.ignore_eos,
        **{name: getattr(sweep.sampling, name) for name in names},
    }
    filled = Bench.fill(
        results, schema_version=SCHEMA_VERSION, environment=environment, settings=settings
    )
    return filled.document()


def csv_text(results: Results, sweep: Sweep, environment: dict[str, Any]) -> str:
    """Return a line for each arm and cell, with model and environment in the last columns."""
    extra = {"model": model_name(sweep.model)}
    extra |= {key: environment[key] for key in CSV_ENVIRONMENT}
    return rows_text(results.rows, extra)


def rows_text(rows: Sequence[Part], extra: Mapping[str, object] = {}) -> str:
    """Return rows as CSV below the names of their columns; lists and objects are JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    present = {name for row in rows for name in row.model_fields_set}
    columns = [name for name in type(rows[0]).model_fields if name in present]
    writer.writerow([*columns, *extra])
    for row in rows:
        values = {**row.document(), **extra}
        cells = (values.get(name) for name in (*columns, *extra))
        writer.writerow(json.dumps(x) if isinstance(x, list | dict) else x for x in cells)
    return out.getvalue()


def tables(
    rows: Sequence[Row], table: TableText = markdown, names: Iterable[str] = ALL_COLUMNS
) -> Iterator[str]:
    """Yield a table for each cell with an arm a line, and remarks on its arms.

    Args:
        names: the columns to show if rows have them; all of them add the sources of drafts.
    """
    for _, members in groupby(rows, key=lambda row: row.cell):
        group = list(members)
        cells = {key: [_shown(row, key) for row in group] for key in names}
        cells = {key: column for key, column in cells.items() if set(column) != {"-"}}
        lines = [list(line) for line in zip(*cells.values(), strict=True)]
        yield f"{_title(group[0])}\n\n{table([ALL_COLUMNS[key] for key in cells], lines)}"
        for row in group:
            name = _shown(row, "arm")
            if row.sources and names is ALL_COLUMNS:
                yield _sources_table(name, row.sources, table)
            if row.rounds and (why := too_short(row.texts, row.output_tokens)):
                yield f"{name}: {why}."


def _version(environment: dict[str, Any], package: str) -> str:
    version = environment[package]
    return f"{package} {version}" if version else f"no {package}"


def head(results: Results, sweep: Sweep, environment: dict[str, Any]) -> str:
    """Describe the circumstances of all cells in a few lines."""
    gpus = f", {', '.join(environment['gpus'])}" if environment["gpus"] else ""
    commit = environment["commit"] or "no checkout"
    ends = "ignored" if sweep.ignore_eos else "respected"
    bandwidth = {c.threads: c.read_bandwidth_gb_per_s for c in results.cells}
    speeds = ", ".join(f"{gb:.1f} GB/s with {counted(n, 'thread')}" for n, gb in bandwidth.items())
    cores, length = (
        counted(environment["cores"], "core"),
        counted(sweep.sampling.max_output_len, "token"),
    )
    llama_cpp = any(name in LLAMA_CPP for name in sweep.peers)
    peer = f", llama-cpp-python {environment['llama_cpp_python']}" if llama_cpp else ""
    return "\n".join(
        (
            f"`{environment['command']}`",
            "",
            f"- machine: {cores} of {environment['cpu']}{gpus}; read bandwidth {speeds}",
            f"- versions: trtla {environment['trtla']} ({commit}), Python {environment['python']}, "
            f"{_version(environment, 'torch')}, {_version(environment, 'transformers')}{peer}",
            f"- engine: {', '.join(results.executors)}; {length} a "
            f"prompt, end tokens {ends}, {counted(sweep.rounds, 'round')} alternating, medians",
        )
    )


def _title(row: Row) -> str:
    filters = filters_text(row.temperature, row.top_k, row.top_p)
    if row.threads is None:  # of a server: unknown
        return f"**{filters}**"
    length = f", prompts of {counted(row.prompt_len, 'token')}" if row.prompt_len else ""
    return (
        f"**{row.category}, {filters}, batch {row.batch_size}** "
        f"({row.executor}, {counted(row.threads, 'thread')}{length})"
    )


def _sources_table(arm: str, sources: Mapping[str, SourceRow], table: TableText) -> str:
    """Return the figures of each source's nodes, and of all sources."""
    counts = {name: source.counts for name, source in sources.items()}
    counts["all"] = total(counts.values())
    cells = []
    for name, source in counts.items():
        pairs = zip_longest(
            source.accepted[:_SHOWN_DEPTHS], source.fed[:_SHOWN_DEPTHS], fillvalue=0
        )
        depths = " ".join(f"{accepted}/{fed}" for accepted, fed in pairs)
        more = " ..." * (len(source.fed) > _SHOWN_DEPTHS)
        sums = [str(sum(counts)) for counts in (source.proposed, source.fed, source.accepted)]
        cells.append(
            [name, *sums, f"{source.expected:.1f}", shown(source.calibration), depths + more]
        )
    return table([f"sources of {arm}", *_SOURCE_FIGURES], cells)


def _shown(row: Row, key: str) -> str:
    if key == "arm":
        return f"{row.arm} ({row.setting})" if row.setting else row.arm
    if key == "weight_type":
        kind = row.weight_type or "-"
        return kind if row.compute_type in (None, kind) else f"{kind} in {row.compute_type}"
    if key in _SPREADS:
        middle, p99 = getattr(row, f"median_{key}_ms"), getattr(row, f"p99_{key}_ms")
        return "-" if middle is None else f"{middle:.1f} ({p99:.1f})"
    if key == "range":
        if row.tokens_per_s_min is None:
            return "-"
        return f"{row.tokens_per_s_min:.0f}-{row.tokens_per_s_max:.0f}"
    if key == "agreement":
        equal, at = f"{row.equal_texts} of {row.texts}", row.first_divergence
        equal = equal if at is None else f"{equal} (from {at})"
        return "-" if row.equal_texts is None else equal
    value = getattr(row, key)
    if key in _EXACT and value is not None:
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return shown(value)
