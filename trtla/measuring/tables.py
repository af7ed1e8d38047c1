"""Tables of rows: one for each cell, with an arm a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest

from trtla.console import TableText, counted, markdown
from trtla.console import cell as shown
from trtla.results.documents import SourceRow
from trtla.results.metrics import too_short, total
from trtla.results.rows import Row
from trtla.settings.sampling import filters_text

ALL_COLUMNS = {
    "arm": "arm",
    "tokens_per_s": "tokens/s",
    "tokens_per_step": "S",
    "acceptance_rate": "acceptance",
    "speedup_vs_ar": "median speed-up",
    "predicted_speedup": "predicted speed-up",
    "agreement": "texts as ar",
    "ttft_ms": "TTFT ms",
    "ms_per_token": "ms/token",
    "range": "min-max",
    "weight_type": "weights",
    "efficiency": "efficiency",
    "fed_per_step": "fed/step",
    "host_ms_per_step": "host ms/step",
    "read_gb_per_s": "GB/s",
    "share_of_bandwidth": "of bandwidth",
    "head_per_step": "head/step",
    "head_share": "of time in head",
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
_SOURCE_FIGURES = (
    "proposed", "fed", "accepted", "expected", "calibration", "accepted/fed by depth"
)  # fmt: skip
_SHOWN_DEPTHS = 8
_EXACT = ("tokens_per_s", "peak_memory_mb", "ttft_ms")  # shown with fewer digits


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
    if key == "range":
        if row.tokens_per_s_min is None:
            return "-"
        return f"{row.tokens_per_s_min:.0f}-{row.tokens_per_s_max:.0f}"
    if key == "agreement":
        equal, at = f"{row.equal_texts} of {row.texts}", row.first_divergence
        equal = equal if at is None else f"{equal} (from {at})"
        return "-" if row.equal_texts is None else equal
    if key == "head_per_step":
        return shown(row.head_forwards / row.steps if row.head_forwards and row.steps else None)
    value = getattr(row, key)
    if key in _EXACT and value is not None:
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return shown(value)
