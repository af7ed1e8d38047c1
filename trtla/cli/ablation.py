"""`trtla bench --ablation`: its flags, checks and printing; the work is in trtla.bench.ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.bench.ablation_arms import METHODS, NEEDS_DRAFT_MODEL, Grid, arms
from trtla.bench.ablation_cases import OWN_PROMPT, TASKS, TaskPrompt, load_tasks
from trtla.bench.ablation_csv import means_path, means_text
from trtla.bench.ablation_rows import SETTING, Cells
from trtla.cli.bench_flags import BenchFlags
from trtla.cli.drafter_options import check_drafters
from trtla.cli.options import PATH, setting, stack, switch
from trtla.cli.settings import check_folder, source
from trtla.cli.values import COUNT, COUNTS, NAMES, NUMBERS, TEXT
from trtla.console import Console, command_line
from trtla.errors import UsageError, did_you_mean
from trtla.files import ASSETS
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import parse_processor

if TYPE_CHECKING:
    from trtla.bench.ablation import Ablated, Ablation

SHIPPED_DRAFT_MODEL = ASSETS / "tiny-llama-draft"
_SECTION = "Ablation: drafters against plain decoding, a CSV row a decoding"
_PROCESSORS = ("greedy", "nucleus:0.8:0.9")
_LARGEST = LookaheadConfig(7, 7, 7)  # stands in for the engine's triple where arms are only checked


@dataclass(frozen=True, slots=True)
class AblationFlags:
    """The group's own flags as click parsed them."""

    ablation: bool
    prompt: str | None
    prompts_per_task: int | None
    repeats: int
    arms: tuple[str, ...]
    draft_model: str | None
    output: str
    grid_gamma: tuple[int, ...]
    grid_gamma_max: tuple[int, ...]
    grid_ema: tuple[float, ...]
    grid_ngram_kind: tuple[str, ...]
    grid_ngram_order: tuple[int, ...]
    grid_top_k_filler: tuple[int, ...]


ablation_flags = stack(
    switch(
        "--ablation",
        section=_SECTION,
        help="In place of the tables: plain decoding, a draft model with fixed gamma and with "
        "EGAG, n-grams, prompt lookup, lookahead and a chain, on the shipped tasks. Rows are "
        "kept: the same command goes on where it was interrupted. Of the other flags it reads "
        "--engine-dir, --tokenizer-dir, --lookahead, --categories (of the tasks), --device, "
        "--dtype, --draft-device, --draft-dtype, --threads, --processor, --max-output-len, --seed, "
        "--ignore-eos and -o.",
    ),
    setting("--prompt", section=_SECTION, type=TEXT, help="Decode this text, not the tasks."),
    setting(
        "--prompts-per-task",
        section=_SECTION,
        type=COUNT,
        show_default="all",
        help="Most prompts of a task.",
    ),
    setting(
        "--repeats",
        section=_SECTION,
        type=COUNT,
        default=3,
        help="Decodings of every setting; repeat i has seed + i.",
    ),
    setting(
        "--arms",
        section=_SECTION,
        type=NAMES,
        default=",".join(METHODS),
        help="What to measure; ar always comes first.",
    ),
    setting(
        "--draft-model",
        section=_SECTION,
        type=PATH,
        show_default="the shipped tiny-llama-draft",
        help="What drafts in sd, egag and the chain; it has the model's vocabulary.",
    ),
    setting(
        "--output",
        section=_SECTION,
        type=PATH,
        default="ablation_results.csv",
        help="Rows go here, their means and deviations to FILE_means.csv beside it.",
    ),
    setting(
        "--grid-gamma",
        section=_SECTION,
        type=COUNTS,
        default="4",
        help="Most drafted tokens, of sd, nasd, prompt-lookup and the chain.",
    ),
    setting("--grid-gamma-max", section=_SECTION, type=COUNTS, default="6", help="Of egag."),
    setting("--grid-ema", section=_SECTION, type=NUMBERS, default="0.9", help="Of egag."),
    setting(
        "--grid-ngram-kind",
        section=_SECTION,
        type=NAMES,
        default="basic",
        help="basic or onelevel, of nasd; the chain has the first.",
    ),
    setting(
        "--grid-ngram-order",
        section=_SECTION,
        type=COUNTS,
        default="3",
        help="Of nasd and the chain.",
    ),
    setting(
        "--grid-top-k-filler",
        section=_SECTION,
        type=COUNTS,
        default="3",
        help="Of nasd and the chain.",
    ),
)
"""The flags of --ablation; lists are grids."""


def take_ablation_flags(flags: dict[str, Any]) -> AblationFlags:
    """Take the group's values out of a command's flags."""
    return AblationFlags(**{field.name: flags.pop(field.name) for field in fields(AblationFlags)})


def check_read(own: AblationFlags) -> None:
    """Refuse flags of the running command that would change nothing, with --ablation or without.

    Raises:
        UsageError: one is given.
    """
    names = (field.name for field in fields(BenchFlags if own.ablation else AblationFlags))
    context = click.get_current_context()
    for name in names:
        if name not in _READ and source(context, name) == "flag":
            flag = f"--{name.replace('_', '-')}"
            if own.ablation:
                raise UsageError(f"--ablation does not read {flag}", "leave it away")
            raise UsageError(f"{flag} is read by --ablation alone", "add that, or leave it away")


def run_ablation_command(
    console: Console, given: BenchFlags, own: AblationFlags, server: LookaheadConfig | None
) -> None:
    """Check, measure with a note a row, and print a summary.

    Args:
        server: the triple to open the model with; None is the engine's own.

    Raises:
        UsageError: a flag, a folder or the output file is not usable.
    """
    ablation = _check(given, own, server)
    from trtla.bench.ablation import run_ablation

    def on_row(row: Cells, number: int, total: int) -> None:
        console.note(f"{number} of {total}: {_told(row)}")

    try:
        done = run_ablation(ablation, on_row, lambda text: console.note(f"note: {text}"))
    except KeyboardInterrupt:
        console.note(f"\nnote: rows so far are in {ablation.output}; the same command goes on")
        raise
    console.note(f"note: rows are in {ablation.output}, means in {means_path(ablation.output)}")
    if given.output_format == "csv":
        console.out(means_text(done.rows), end="")
    elif given.output_format == "json":
        console.document(_document(ablation, done))
    else:
        _print(console, done.summary())


def _check(given: BenchFlags, own: AblationFlags, server: LookaheadConfig | None) -> Ablation:
    """What can be refused before torch is imported."""
    if len(given.threads) > 1:
        raise UsageError(
            f"--threads has {len(given.threads)} numbers, and --ablation takes one",
            "run it once for each, with an --output of its own",
        )
    grid = _grid(given, own)
    made = arms(grid, server or _LARGEST)
    named = [(f"--arms {arm.method}", arm.drafting) for arm in made]
    check_drafters(given.engine_dir, named, flags=given)
    processors = tuple(map(parse_processor, given.processor or _PROCESSORS))
    prompts = _prompts(given, own)
    _check_output(Path(own.output))
    from trtla.bench.ablation import Ablation

    return Ablation(
        model=given.engine_dir,
        tokenizer_dir=given.tokenizer_dir,
        devices=given.device,
        dtypes=given.dtype,
        threads=given.threads[0] if given.threads else None,
        server=server,
        grid=grid,
        prompts=tuple(prompts),
        processors=processors,
        repeats=own.repeats,
        seed=given.seed,
        max_output_len=given.max_output_len,
        ignore_eos=given.ignore_eos,
        output=Path(own.output),
        draft_device=given.draft_device,
        draft_dtype=given.draft_dtype,
    )


def _grid(given: BenchFlags, own: AblationFlags) -> Grid:
    for name in own.arms:
        if name not in METHODS:
            guess = did_you_mean(name, METHODS)
            raise UsageError(f"--arms has the unknown {name}", f"{guess}use {', '.join(METHODS)}")
    needs = any(name in NEEDS_DRAFT_MODEL for name in own.arms)
    return Grid(
        own.arms,
        (own.draft_model or str(SHIPPED_DRAFT_MODEL)) if needs else None,
        own.grid_gamma,
        1,
        own.grid_gamma_max,
        own.grid_ema,
        own.grid_ngram_kind,  # type: ignore[arg-type]  # DrafterSettings refuses other names
        own.grid_ngram_order,
        own.grid_top_k_filler,
        tuple(triple for triple in given.lookahead if triple != "auto"),
    )


def _prompts(given: BenchFlags, own: AblationFlags) -> list[TaskPrompt]:
    if own.prompt is None:
        return load_tasks(given.categories or TASKS, own.prompts_per_task)
    if not own.prompt:
        raise UsageError("--prompt is empty", "give at least one character")
    if given.categories:
        raise UsageError("--prompt and --categories exclude each other", "leave one of them away")
    return [TaskPrompt(OWN_PROMPT, 0, own.prompt)]


def _check_output(path: Path) -> None:
    if path.suffix.lower() != ".csv":
        raise UsageError(f"--output {path} is not a .csv file", "give it that ending")
    check_folder(path, "--output")


def _told(row: Cells) -> str:
    return (
        f"{row['task']} {row['prompt_id']}, {row['processor']}, repeat {row['repeat']}, "
        f"{row['method']}: {float(row['tokens_per_s']):.0f} tok/s"
    )


_READ = (
    "engine_dir", "tokenizer_dir", "lookahead", "categories", "device", "dtype", "draft_device",
    "draft_dtype", "threads", "processor", "max_output_len", "seed", "ignore_eos", "output_format",
)  # fmt: skip
"""What --ablation reads of the command's other flags."""
_TEXTS = (
    "method", "gamma_policy", "ngram_kind", "model", "drafter", "backend", "device", "dtype",
    "processor", "task",
)  # fmt: skip
_SUMMARY = {
    "tokens/s": "tokens_per_s_mean",
    "speed-up": "speedup_vs_ar_mean",
    "+/-": "speedup_vs_ar_std",
    "S": "tokens_per_step_mean",
    "acceptance": "acceptance_rate_mean",
    "drafted": "drafted_mean",
    "perplexity": "perplexity_mean",
}


def _document(ablation: Ablation, done: Ablated) -> dict[str, object]:
    from trtla.results.environment import environment

    shares = zip(done.summary(), done.accepted_per_pos(), strict=True)
    means = [{**_typed(row), "accepted_per_pos": share} for row, share in shares]
    return {
        "schema_version": 1,
        "environment": environment(command_line()),
        "output": str(ablation.output),
        "means": means,
    }


def _typed(row: Cells) -> dict[str, object]:
    """A row of means for JSON: numbers as numbers, empty cells as null."""
    return {key: cell if key in _TEXTS and cell else _value(cell) for key, cell in row.items()}


def _value(cell: str) -> object:
    if cell in ("true", "false"):
        return cell == "true"
    return (int(cell) if cell.isdecimal() else float(cell)) if cell else None


def _print(console: Console, rows: Sequence[Cells]) -> None:
    shown = [name for name in ("device", "dtype") if len({row[name] for row in rows}) > 1]
    columns = [*shown, "processor", "arm", "setting", *_SUMMARY, "texts as ar"]
    console.table(columns, [_summary_row(row, shown) for row in rows])


def _summary_row(row: Cells, shown: Sequence[str]) -> list[object]:
    figures = [float(row[key]) if row[key] else None for key in _SUMMARY.values()]
    same = round(float(row["same_as_ar_mean"]) * int(row["rows"]))
    names = [row[name] for name in (*shown, "processor", "method")]
    return [*names, _setting(row), *figures, f"{same} of {row['rows']}"]


def _setting(row: Cells) -> str:
    """What an arm is set to, in the words of the file's columns."""
    given = [f"{name} {row[name]}" for name in SETTING[2 : SETTING.index("model")] if row[name]]
    return ", ".join(given) or "-"
