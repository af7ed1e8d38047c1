"""How `trtla tune` tells its plan and its outcome to people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtla.console import Console
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.tune.grid import grid
from trtla.tune.prediction import ALL, Row, best

if TYPE_CHECKING:
    from trtla.tune.settings import Tuned, TuneSettings
    from trtla.tune.verification import Verified

_BEST = 8
"""Rows of the table of the grid's best."""


def show_plan(console: Console, plan: TuneSettings) -> None:
    """What would be measured."""
    facts: dict[str, object] = {
        "engine": plan.engine,
        "model": plan.model,
        "limit": str(plan.limit),
        "triples": len(grid(plan.limit)),
        "prompts": {one.category: len(one.texts) for one in plan.sets},
        "batch_sizes": list(plan.batch_sizes),
        "temperature": plan.sampling.temperature,
        "max_output_len": plan.sampling.max_output_len,
        "budget_s": plan.budget_s,
        "costs": f"roofline of {plan.gpu.name}" if plan.gpu else "measured",
        "output_dir": str(plan.output_dir),
    }
    if console.json:
        console.document({"schema_version": 1, "command": "tune", "dry_run": True, **facts})
        return
    shown = {key: _listed(value) for key, value in facts.items()}
    console.table(["setting", "value"], [[key, value] for key, value in shown.items()])


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def show(console: Console, tuned: Tuned, plan: TuneSettings) -> None:
    """The recommendation, the tables behind it, and where the files are."""
    for line in advice(tuned, planned=plan.planned):
        console.out(line)
    console.out()
    _show_best(console, tuned)
    if tuned.verified:
        console.out()
        _show_verified(console, tuned.verified)
    _show_changes(console, "batch size", tuned.recommendation.by_batch_size)
    _show_changes(console, "category", tuned.recommendation.by_category)
    console.out()
    console.out(_curve(tuned))
    console.note(f"note: {tuned.time_s:.0f} s; tune.json and pictures are in {plan.output_dir}")


def advice(tuned: Tuned, *, planned: bool) -> list[str]:
    """What to do, in sentences."""
    found = tuned.recommendation
    where = f"batch size {found.batch_size}"
    if found.lookahead == AUTOREGRESSIVE:
        lines = [f"Nothing beats plain decoding here ({where}): use --lookahead {AUTOREGRESSIVE}."]
    else:
        lines = [f"{found.lookahead.describe()}: {_speed(tuned)} over plain decoding ({where})."]
    if planned:
        lines.append(f"Build with: trtla build --lookahead {found.lookahead} (costs: ")
        lines[-1] += f"{tuned.cost.note}; acceptance: the model on the torch executor)."
    lines += _faster_others(tuned)
    return lines


def _speed(tuned: Tuned) -> str:
    found = tuned.recommendation
    kind = "by the roofline" if tuned.cost.source == "roofline" else "expected"
    text = f"{found.predicted_speedup:.2f}x {kind}"
    if found.measured_speedup is not None:
        text += f", {found.measured_speedup:.2f}x measured"
    return text


def _faster_others(tuned: Tuned) -> list[str]:
    """What needs no triple and was faster than the recommended one."""
    found = tuned.recommendation
    bar = max(1.02, 1.02 * (found.measured_speedup or 1.0))
    return [
        f"{_flag(one.name)} was faster than any triple: {one.measured_speedup:.2f}x measured."
        for one in tuned.verified
        if one.lookahead is None
        and one.batch_size == found.batch_size
        and one.category == _together(tuned.rows)
        and one.measured_speedup > bar
    ]


def _flag(name: str) -> str:
    return "--lookahead auto" if name == "auto" else f"--drafter {name}"


def _together(rows: Sequence[Row]) -> str:
    return ALL if any(row.category == ALL for row in rows) else rows[0].category


def _show_best(console: Console, tuned: Tuned) -> None:
    size = tuned.recommendation.batch_size
    ranked = best(tuned.rows, _together(tuned.rows), size)[:_BEST]
    console.table(
        ["lookahead", "predicted speed-up", "S", "fed/step", "acceptance"],
        [
            [
                str(row.lookahead),
                row.predicted_speedup,
                row.tokens_per_step,
                row.fed_per_step,
                row.acceptance,
            ]
            for row in ranked
        ],
    )


def _show_verified(console: Console, verified: Sequence[Verified]) -> None:
    console.table(
        ["verified", "category", "batch size", "predicted", "measured", "error %"],
        [
            [
                one.name,
                one.category,
                one.batch_size,
                one.predicted_speedup,
                one.measured_speedup,
                one.error_percent,
            ]
            for one in verified
            if one.lookahead != AUTOREGRESSIVE
        ],
    )


def _show_changes(console: Console, axis: str, rows: Sequence[Row]) -> None:
    if len(rows) < 2:
        return
    key = axis.replace(" ", "_")
    console.out()
    console.table(
        [axis, "lookahead", "predicted speed-up"],
        [[getattr(row, key), str(row.lookahead), row.predicted_speedup] for row in rows],
    )


def _curve(tuned: Tuned) -> str:
    cost = tuned.cost
    points = next(points for count, points in cost.table.rows if count == 1)
    last, first = points[-1], points[0]
    return (
        f"Cost: {cost.note}. One sequence: {first[0]} token {1000 * first[1]:.3g} ms, "
        f"{last[0]} tokens {1000 * last[1]:.3g} ms; up to {cost.knee} tokens take at most 1.25 "
        "times as long as one (the knee)."
    )
