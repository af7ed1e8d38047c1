"""Output of `trtla tune`: the printed plan and recommendation, tune.json, and the preset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtla.cli.shared.params import check_folder
from trtla.console import Console
from trtla.errors import UsageError
from trtla.extras.bench.documents import whole_category
from trtla.extras.bench.tune.documents import Choice, Recommendation, Tune
from trtla.extras.bench.tune.grid import coarse
from trtla.extras.bench.tune.prediction import AUTO, WORTH, ranked
from trtla.files import write_whole, written
from trtla.results.rows import Row
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

if TYPE_CHECKING:
    from trtla.extras.bench.tune.grid import TuneSettings


_PLAIN = AUTOREGRESSIVE.as_tuple()
_MOST_ARMS = 12
"""The most arms of the table, the fastest first."""
_COLUMNS = (
    "arm", "tokens_per_s", "tokens_per_step", "speedup_vs_ar", "predicted_speedup", "fed_per_step"
)  # fmt: skip


def show_plan(console: Console, plan: TuneSettings) -> None:
    """Print the settings of the measurement."""
    facts: dict[str, object] = {
        "engine": plan.engine,
        "model": plan.model,
        "limit": str(plan.limit),
        "triples": len(coarse(plan.limit)),
        "prompts": {each.category: len(each.texts) for each in plan.sets},
        "batch_sizes": list(plan.batch_sizes),
        "temperature": plan.sampling.temperature,
        "max_output_len": plan.sampling.max_output_len,
        "budget_s": plan.budget_s,
        "costs": f"roofline of {plan.gpu}" if plan.gpu else "measured",
        "output_dir": str(plan.output_dir),
    }
    if console.json:
        console.document({"schema_version": 1, "command": "tune", "dry_run": True, **facts})
        return
    facts["prompts"] = ", ".join(f"{each.category} {len(each.texts)}" for each in plan.sets)
    facts["batch_sizes"] = ", ".join(map(str, plan.batch_sizes))
    console.table(["setting", "value"], [[key, str(value)] for key, value in facts.items()])


def show(console: Console, tuned: Tune, plan: TuneSettings) -> None:
    """Print the recommendation, its tables, and the folder of the files."""
    from trtla.measuring.tables import tables

    best = tuned.recommendation
    for line in advice(tuned, best, planned=plan.planned):
        console.out(line)
    console.out()
    shown = _ran(tuned, None, best.batch_size)[:_MOST_ARMS]
    console.out("\n\n".join(tables(shown, console.table_text, _COLUMNS)))
    _show_changes(console, tuned, "batch size", best.by_batch_size, best)
    _show_changes(console, tuned, "category", best.by_category, best)
    console.out()
    console.out(_curve(tuned))
    console.note(f"note: {tuned.time_s:.0f} s; tune.json is in {plan.output_dir}")


def advice(tuned: Tune, best: Recommendation, *, planned: bool) -> list[str]:
    """Return the advice in sentences."""
    lines, triple = _headline(tuned, best), LookaheadConfig(*best.lookahead)
    if planned:
        lines.append(
            f"Build with: trtla build --lookahead {triple} (costs: {tuned.cost.note}; acceptance: "
            "the model on the torch executor)."
        )
    bar = WORTH * max(1.0, best.measured_speedup or 1.0, best.auto_speedup or 1.0)
    return lines + [
        f"--drafter {row.arm} was faster: {row.speedup_vs_ar:.2f}x measured."
        for row in _ran(tuned, None, best.batch_size)
        if row.triple is None and row.arm != AUTO and (row.speedup_vs_ar or 0.0) > bar
    ]


def _headline(tuned: Tune, best: Recommendation) -> list[str]:
    """Recommend `auto` or a triple, and compare the other of both."""
    over = f"plain decoding (batch size {best.batch_size})"
    triple = LookaheadConfig(*best.lookahead)
    kind = "by the roofline" if tuned.cost.source == "roofline" else "predicted"
    auto = "" if best.auto_speedup is None else f"{best.auto_speedup:.2f}x measured"
    if best.keep_auto:
        first = f"Keep auto, the default: {auto} over {over}."
        if triple == AUTOREGRESSIVE:
            return [first, "No fixed triple beats plain decoding here."]
        ahead = (best.measured_speedup or 0.0) > (best.auto_speedup or 0.0)
        close = "; it is ahead by less than timings scatter" if ahead else ""
        return [first, f"Best fixed triple: {triple}, {choice_speed(best, kind)}{close}."]
    second = [f"auto, the default: {auto}."] if auto else []
    if triple == AUTOREGRESSIVE:
        return [f"Nothing beats {over} here: use --lookahead {triple}.", *second]
    return [f"{triple.describe()}: {choice_speed(best, kind)} over {over}.", *second]


def _ran(tuned: Tune, category: str | None, size: int | None) -> list[Row]:
    """Return the rows of a batch size, the fastest first; None: over all categories."""
    return ranked(tuned.rows, category or whole_category(tuned.rows), size)


def _show_changes(
    console: Console, tuned: Tune, axis: str, choices: Sequence[Choice], best: Recommendation
) -> None:
    """Print the best triple by batch size or category, and the arms without a triple."""
    if len(choices) < 2:
        return
    others = list(dict.fromkeys(row.arm for row in tuned.rows if row.triple is None))
    rows = []
    for choice in choices:
        ran = _ran(tuned, choice.category, choice.batch_size or best.batch_size)
        real = {row.arm: row.speedup_vs_ar for row in ran}
        ratio = choice.measured_speedup or choice.predicted_speedup
        key = choice.batch_size if choice.category is None else choice.category
        how = "predicted" if choice.measured_speedup is None else "measured"
        name = ",".join(map(str, choice.lookahead))
        rows.append([key, name, ratio, how, *(real.get(name) for name in others)])
    console.out()
    console.table([axis, "lookahead", "speed-up", "how", *others], rows)


def _curve(tuned: Tune) -> str:
    cost = tuned.cost
    points = next(row.points for row in cost.rows if row.sequences == 1)
    last, first = points[-1], points[0]
    return (
        f"Cost: {cost.note}. One sequence: {first[0]} token {1000 * first[1]:.3g} ms, "
        f"{last[0]} tokens {1000 * last[1]:.3g} ms; up to {cost.knee} tokens take at most 1.25 "
        "times as long as one (the knee)."
    )


def write_document(tuned: Tune, path: Path) -> None:
    """Write the JSON document, which `trtla report` reads."""
    with written(path, "give another path to --output-dir"):
        write_whole(path, json.dumps(tuned.document(), indent=1) + "\n")


def make_folder(folder: Path) -> None:
    """Make the folder of --output-dir, and check that it is writable."""
    with written(folder, "give another --output-dir"):
        folder.mkdir(parents=True, exist_ok=True)
    check_folder(folder / "tune.json", "--output-dir")


def check_preset(path: Path) -> None:
    """Refuse a name that cannot become a preset, before anything is measured."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(f"--write {path} is not a .yaml file", "give it that ending")
    if path.is_dir():
        raise UsageError(f"--write {path} is a folder", "give the name of a file")


def write_preset(tuned: Tune, path: Path) -> bool:
    """Write the recommendation as a preset; False: nothing is ahead of plain decoding.

    It is `auto` or a triple, whichever was measured ahead; for an engine that is still to be built
    it is the triple that the roofline predicts, and the preset says so.
    """
    chosen = tuned.recommendation
    unmeasured = chosen.measured_speedup is None and not _by_roofline(tuned)
    if not chosen.keep_auto and (unmeasured or chosen.lookahead == _PLAIN):
        return False
    with written(path, "give another path to --write"):
        write_whole(path, preset_text(tuned))
    return True


def preset_text(tuned: Tune) -> str:
    """Return the preset with its origin in comments."""
    best = tuned.recommendation
    kind = "by the roofline, not measured" if _by_roofline(tuned) else "predicted"
    lines = [
        f"Lookahead for {tuned.model}, batch size {best.batch_size}: {_described(best, kind)}, "
        "over plain decoding.",
        "",
        f"  {tuned.argv}",
        "",
        f"Costs: {tuned.cost.note}.",
        *(
            f"Batch size {each.batch_size}: {_described(each, kind)}."
            for each in best.by_batch_size
        ),
        *(f"Text like {each.category}: {_described(each, kind)}." for each in best.by_category),
        "",
        *(_AUTO if best.keep_auto else _FIXED),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + _setting(best)


_AUTO = (
    "For every command that decodes. A build has a triple, which is the most that auto drafts.",
)
_FIXED = (
    "For trtla build --config, and trtla run --config with a Hugging Face folder or an engine",
    "that was built with this triple; with one built for more, use --request-lookahead.",
)


def _setting(best: Recommendation) -> str:
    """Return the lines of a preset that are not its head."""
    triple = LookaheadConfig(*best.lookahead)
    note = f"window, ngram, verification set; max_draft_len is {triple.max_draft_len}."
    fixed = f"lookahead: {list(best.lookahead)}"
    if not best.keep_auto:
        return f"\n# {note}\n{fixed}\n"
    return "\nlookahead: auto\n" + (
        "" if best.lookahead == _PLAIN else f"\n# The best fixed triple:\n# {fixed}\n"
    )


def choice_speed(choice: Choice, kind: str = "predicted") -> str:
    """Describe a choice's speed-up."""
    speeds = {kind: choice.predicted_speedup, "measured": choice.measured_speedup}
    return ", ".join(f"{value:.2f}x {how}" for how, value in speeds.items() if value is not None)


def _described(choice: Choice, kind: str) -> str:
    auto = f"auto, {choice.auto_speedup:.2f}x measured; " if choice.auto_speedup else ""
    return f"{auto}{LookaheadConfig(*choice.lookahead)}, {choice_speed(choice, kind)}"


def _by_roofline(tuned: Tune) -> bool:
    return tuned.cost.source == "roofline"
