"""The run of `trtla bench` and its ablation with progress, and the printing of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtla.console import Console, command_line
from trtla.extras.bench.flags import print_as
from trtla.settings.sampling import filters_text

if TYPE_CHECKING:
    from trtla.extras.bench.sweep import Results, Sweep
    from trtla.measuring.turns import CellRuns


def run_and_show(console: Console, sweep: Sweep, output_format: str, *, wide: bool) -> None:
    """Measure and print; an interrupt prints what was measured."""
    from trtla.extras.bench.sweep import Results

    results = Results()
    try:
        if run(console, sweep, results) is None:  # a serving rank of mpirun
            return
    except KeyboardInterrupt:
        if results.rows:
            resumes = ", and the same command resumes" if sweep.output else ""
            console.note(f"note: interrupted; this is what was measured{resumes}")
            show(console, results, sweep, output_format, wide=wide)
        raise
    show(console, results, sweep, output_format, wide=wide)


def run(console: Console, sweep: Sweep, results: Results | None = None) -> Results | None:
    """Measure, with a note for each round; None in the serving ranks of mpirun."""
    from trtla.extras.bench.sweep import Results, run_sweep

    def on_round(measured: CellRuns, number: int) -> None:
        cell = measured.cell
        filters = filters_text(cell.temperature, cell.top_k, cell.top_p)
        last = ((name, runs[-1].tokens_per_s) for name, runs in measured.runs().items())
        speeds = ", ".join(f"{name} {speed:.0f} tok/s" for name, speed in last)
        console.note(
            f"{cell.category}, {filters}, batch {cell.batch_size}, round {number} of "
            f"{sweep.rounds}: {speeds}"
        )

    on_note = lambda text: console.note(f"note: {text}")  # noqa: E731
    return run_sweep(sweep, results or Results(), on_note, on_round, console.progress)


def show(
    console: Console, results: Results, sweep: Sweep, output_format: str, *, wide: bool
) -> None:
    """Print results in the form of --output-format; tables with all columns if `wide`."""
    from trtla.extras.bench.results import csv_text, document, head
    from trtla.measuring.tables import ALL_COLUMNS, USUAL, tables
    from trtla.results.documents import environment
    from trtla.results.metrics import too_short

    machine = environment(command_line())
    for row in results.rows:
        if output_format != "md" and (short := too_short(row.texts, row.output_tokens)):
            console.note(f"note: {row.category}, {row.arm}: {short}")
    print_as(
        console,
        output_format,
        document=lambda: document(results, sweep, machine),
        csv=lambda: csv_text(results, sweep, machine),
        text=lambda: [
            head(results, sweep, machine),
            *tables(results.rows, console.table_text, ALL_COLUMNS if wide else USUAL),
        ],
    )
