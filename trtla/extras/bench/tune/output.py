"""The printed recommendation and table of `trtla tune`, and the preset."""

from __future__ import annotations

from pathlib import Path

from trtla.console import Console
from trtla.extras.bench.tune.documents import Tune
from trtla.extras.bench.tune.prediction import ranked
from trtla.files import write_whole, written
from trtla.measuring.tables import tables
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

_MOST_ARMS = 12
"""The most arms of the table, the fastest first."""
_COLUMNS = (
    "arm", "tokens_per_s", "tokens_per_step", "speedup_vs_ar", "predicted_speedup", "fed_per_step"
)  # fmt: skip


def show(console: Console, tuned: Tune) -> None:
    """Print the recommendation and the table of what was measured, or else predicted."""
    measured = [row for row in tuned.rows if row.speedup_vs_ar is not None]
    shown = ranked(measured or tuned.rows)[:_MOST_ARMS]
    console.out(f"{recommendation(tuned)}\n")
    console.out("\n\n".join(tables(shown, console.table_text, _COLUMNS)))
    console.note(f"note: {tuned.time_s:.0f} s; costs of steps: {tuned.settings['costs']}")


def recommendation(tuned: Tune) -> str:
    """Return the recommendation in one line, with the speed-up of what it was chosen over."""
    best, triple = tuned.recommendation, LookaheadConfig(*tuned.recommendation.lookahead)
    over = f"plain decoding at batch size {best.batch_size}"
    if best.measured_speedup is None:
        return f"Build with --lookahead {triple}: {best.predicted_speedup:.2f}x {over}, predicted."
    if best.keep_auto:
        other = f"the best triple, {triple}, is {best.measured_speedup:.2f}x"
        other = "no triple is faster" if triple == AUTOREGRESSIVE else other
        return f"Keep --lookahead auto, the default: {best.auto_speedup:.2f}x {over}; {other}."
    auto = f"auto is {best.auto_speedup or 0.0:.2f}x"
    if triple == AUTOREGRESSIVE:
        return f"Use --lookahead {triple}: nothing is 2 % faster than {over}; {auto}."
    return f"Use --lookahead {triple}: {best.measured_speedup:.2f}x {over}; {auto}."


def write_preset(tuned: Tune, path: Path) -> None:
    """Write the recommendation as a preset for --config, with its origin in comments."""
    best, command = tuned.recommendation, tuned.environment.get("command")
    head = (f"{tuned.model}. {recommendation(tuned)}", str(command))
    comments = "".join(f"# {' '.join(line.split())}\n" for line in head)
    value = "auto" if best.keep_auto else list(best.lookahead)
    with written(path, "give another path to --write"):
        write_whole(path, f"{comments}lookahead: {value}\n")
