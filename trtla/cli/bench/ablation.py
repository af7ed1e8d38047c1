"""`trtla bench --ablation`: its flags, checks and printing; the work is in trtla.bench.ablation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtla.bench.ablation_arms import (
    KNOWN_METHODS,
    METHODS,
    OWN_PROMPT,
    SOURCE_METHODS,
    TASKS,
    AblationArm,
    TaskPrompt,
    arms,
    cases,
    load_tasks,
)
from trtla.cli.bench.bench_flags import (
    BenchFlags,
    Mode,
    check_choices,
    flag_of,
    print_as,
    shared_setup,
)
from trtla.cli.shared.model import check_drafters, check_texts, check_vocabulary
from trtla.cli.shared.options import PATH, setting, stack, switch
from trtla.cli.shared.params import check_folder, source
from trtla.cli.shared.values import COUNT, COUNTS, NAMES, NUMBERS, TEXT
from trtla.console import Console, command_line, counted, duration
from trtla.errors import UsageError
from trtla.files import ASSETS
from trtla.interrupts import INTERRUPTS
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams, parse_processor

if TYPE_CHECKING:
    from trtla.bench.ablation import Ablated, AblationPlan, OnRow
    from trtla.bench.ablation_table import Cells
    from trtla.results.bench_documents import AblationRow

_SECTION = "Ablation: drafters against plain decoding, a CSV row a decoding"
_PROMPTS, _REPEATS = 2, 3
"""Prompts of a task without --full, and repeats with it."""
_PROCESSORS = ("greedy", "nucleus:0.8:0.9")
_READ = (
    "engine_dir", "tokenizer_dir", "lookahead", "categories", "chat", "system", "device", "dtype",
    "kv_cache_dtype", "draft_device", "draft_dtype", "threads", "processor", "max_output_len",
    "seed", "ignore_eos", "output_format", "json",
)  # fmt: skip
ABLATION = Mode("--ablation", _SECTION, _READ)


_own = partial(setting, section=_SECTION)

ablation_flags = stack(
    switch(
        "--ablation",
        basic=True,
        section=_SECTION,
        help="In place of the tables: plain decoding, a draft model with fixed gamma and with "
        "EGAG, n-grams, prompt lookup, lookahead and a chain, on some of the shipped prompts. Rows "
        "are kept: the same command goes on where it was interrupted. Of the other flags it reads "
        f"{', '.join(map(flag_of, _READ[:-1]))} and {flag_of(_READ[-1])}; --categories are tasks.",
    ),
    _own("--prompt", type=TEXT, help="Decode this text, not the tasks."),
    switch(
        "--full",
        section=_SECTION,
        help="All prompts of every task and 3 repeats, 420 decodings an arm. What is in "
        "--output already is kept.",
    ),
    _own(
        "--prompts-per-task",
        type=COUNT,
        show_default=f"{_PROMPTS}; with --full all",
        help="Most prompts of a task.",
    ),
    _own(
        "--repeats",
        type=COUNT,
        show_default=f"1; with --full {_REPEATS}",
        help="Decodings of every setting; repeat i has seed + i.",
    ),
    _own(
        "--arms",
        type=NAMES,
        default=",".join(METHODS),
        help="What to measure; ar always comes first. Beside these: "
        f"{', '.join(SOURCE_METHODS[1:])}.",
    ),
    switch(
        "--sources",
        section=_SECTION,
        help="Measure what the sources of auto's drafts are worth, in place of --arms: "
        f"{', '.join(SOURCE_METHODS)}.",
    ),
    _own(
        "--draft-model",
        type=PATH,
        default=str(ASSETS / "tiny-llama-draft"),
        show_default="the shipped tiny-llama-draft",
        help="What drafts in sd, egag and the chain; it has the model's vocabulary. Without one "
        "that has, these arms are skipped.",
    ),
    _own(
        "--output",
        type=PATH,
        default="ablation_results.csv",
        help="Rows go here, their means and deviations to FILE_means.csv; what was measured is "
        "kept in FILE.jsonl.",
    ),
    _own(
        "--grid-gamma",
        type=COUNTS,
        default="4",
        help="Most drafted tokens, of sd, nasd, prompt-lookup and the chain.",
    ),
    _own(
        "--grid-nodes",
        type=COUNTS,
        default="4,8,16,64",
        help="Drafted tokens of every step, of auto-nodes; the triple is the limit.",
    ),
    _own("--grid-gamma-max", type=COUNTS, default="6", help="Of egag."),
    _own("--grid-ema", type=NUMBERS, default="0.9", help="Of egag."),
    _own(
        "--grid-ngram-kind",
        type=NAMES,
        default="basic",
        help="basic or onelevel, of nasd; the chain has the first.",
    ),
    _own("--grid-ngram-order", type=COUNTS, default="3", help="Of nasd and the chain."),
    _own("--grid-top-k-filler", type=COUNTS, default="3", help="Of nasd and the chain."),
)
"""The flags of --ablation; lists are grids."""


def run_ablation_command(
    console: Console, flags: BenchFlags, lookahead: LookaheadConfig | None
) -> None:
    """Check, say how much it is, measure, and print a summary.

    Args:
        lookahead: the triple to open the model with; None is the engine's own.
    """
    ablation = _check(console, flags, lookahead)
    check_texts(console, flags.asking, (flags.engine_dir, flags.options.tokenizer_dir))
    console.note(f"note: {_extent(ablation)}")
    from trtla.bench.ablation import run_ablation
    from trtla.bench.ablation_table import means_path, means_text

    watched = partial(_watched, console, len(ablation.arms))
    with INTERRUPTS.saying(
        lambda: f"note: rows so far are in {ablation.output}; the same command goes on"
    ):
        done = run_ablation(ablation, watched, lambda text: console.note(f"note: {text}"))
    console.note(f"note: rows are in {ablation.output}, means in {means_path(ablation.output)}")
    print_as(
        console,
        flags.output_format,
        lambda: _document(ablation, done),
        lambda: means_text(done.rows.values()),
        lambda: _print(console, done.overall()),
    )


def _extent(ablation: AblationPlan) -> str:
    """How much there is to decode, before a model is loaded."""
    cases, models = ablation.cases, len(ablation.devices) * len(ablation.dtypes)
    factors = {
        "arm": len(ablation.arms),
        "prompt": len({case.prompt for case in cases}),
        "processor": len({case.processor for case in cases}),
        "repeat": len({case.repeat for case in cases}),
    }
    return (
        f"{counted(prod(factors.values()) * models, 'decoding')} of up to "
        f"{counted(ablation.sampling.max_output_len, 'token')}: "
        f"{', '.join(counted(count, noun) for noun, count in factors.items())}"
        + (f", {models} devices and types" if models > 1 else "")
    )


@contextmanager
def _watched(console: Console, arms: int, before: int) -> Iterator[OnRow]:
    """Progress, with a note of what all takes when every arm has decoded the first prompt."""
    last, seconds = "", list[float]()
    with console.progress("ablation", "decodings", lambda: last, before) as progress:

        def on_row(row: Cells, done: int, total: int) -> None:
            nonlocal last
            last = _described(row)
            seconds.append(float(row["time_s"]))
            if len(seconds) == min(arms, total - before):
                whole = duration(sum(seconds) / len(seconds) * (total - before))
                console.note(
                    f"note: about {whole} in all, by the first {counted(len(seconds), 'decoding')}"
                )
            progress(done, total)

        yield on_row


def _check(console: Console, flags: BenchFlags, lookahead: LookaheadConfig | None) -> AblationPlan:
    """What can be refused before torch is imported."""
    if len(flags.threads) > 1:
        raise UsageError(
            f"--threads has {len(flags.threads)} numbers, and --ablation takes one",
            "run it once for each, with an --output of its own",
        )
    made = _served(console, flags, _arms(flags))
    named = [(f"--arms {arm.method}", arm.drafting) for arm in made]
    models = check_drafters(flags.engine_dir, named, flags.options)
    processors = tuple(map(parse_processor, flags.processor or _PROCESSORS))
    prompts, repeats = _prompts(flags), flags.repeats or (_REPEATS if flags.full else 1)
    _check_output(Path(flags.output))
    from trtla.bench.ablation import AblationPlan

    drafting = [arm.drafting for arm in made if arm.drafting.most_tokens]
    return AblationPlan(
        **shared_setup(flags, lookahead, drafting, models),
        sampling=SamplingParams(flags.max_output_len, seed=flags.seed),
        arms=tuple(made),
        cases=tuple(cases(prompts, processors, repeats, flags.seed)),
        output=Path(flags.output),
    )


def _served(console: Console, flags: BenchFlags, made: list[AblationArm]) -> list[AblationArm]:
    """The arms that can run: the shipped draft model is for the shipped model's vocabulary."""
    if source(click.get_current_context(), "draft_model") != "default":
        return made
    try:
        check_vocabulary(flags.draft_model, Path(flags.engine_dir))
    except UsageError:
        left = [arm for arm in made if arm.drafting.draft_model is None]
        names = ", ".join(dict.fromkeys(arm.method for arm in made if arm not in left))
        if names:
            console.note(f"note: {names} need a --draft-model of this vocabulary, and are skipped")
        return left
    return made


def _arms(flags: BenchFlags) -> list[AblationArm]:
    check_choices("--arms", flags.arms, KNOWN_METHODS)
    if flags.sources and source(click.get_current_context(), "arms") != "default":
        raise UsageError("--sources and --arms exclude each other", "omit one of them")
    return arms(
        SOURCE_METHODS if flags.sources else flags.arms,
        flags.draft_model,
        [triple for triple in flags.lookahead if triple != "auto"],
        gammas=flags.grid_gamma,
        gamma_maxs=flags.grid_gamma_max,
        emas=flags.grid_ema,
        ngram_kinds=flags.grid_ngram_kind,
        ngram_orders=flags.grid_ngram_order,
        top_k_fillers=flags.grid_top_k_filler,
        nodes=flags.grid_nodes,
    )


def _prompts(flags: BenchFlags) -> list[TaskPrompt]:
    if flags.prompt is None:
        most = flags.prompts_per_task or (None if flags.full else _PROMPTS)
        return load_tasks(flags.categories or TASKS, most)
    if not flags.prompt:
        raise UsageError("--prompt is empty", "give at least one character")
    if flags.categories:
        raise UsageError("--prompt and --categories exclude each other", "omit one of them")
    return [TaskPrompt(OWN_PROMPT, 0, flags.prompt)]


def _check_output(path: Path) -> None:
    if path.suffix.lower() != ".csv":
        raise UsageError(f"--output {path} is not a .csv file", "give it that ending")
    check_folder(path, "--output")


def _described(row: Cells) -> str:
    return (
        f"{row['task']} {row['prompt_id']}, {row['processor']}, repeat {row['repeat']}, "
        f"{row['method']}: {float(row['tokens_per_s']):.0f} tok/s"
    )


_SOURCE_COLUMNS = ("fed/step", "calibration")
"""Shown where auto drafted."""
_SUMMARY = {
    "tokens/s": "tokens_per_s_mean",
    "speed-up": "speedup_vs_ar_mean",
    "+/-": "speedup_vs_ar_std",
    "S": "tokens_per_step_mean",
    "acceptance": "acceptance_rate_mean",
    "drafted": "drafted_mean",
    "perplexity": "perplexity_mean",
}


def _document(ablation: AblationPlan, done: Ablated) -> dict[str, object]:
    from trtla.results.bench_documents import Ablation as Document
    from trtla.results.documents import SCHEMA_VERSION, environment

    return Document(
        schema_version=SCHEMA_VERSION,
        environment=environment(command_line()),
        output=str(ablation.output),
        means=tuple(done.overall()),
    ).document()


def _print(console: Console, rows: Sequence[AblationRow]) -> None:
    shown = [name for name in ("device", "dtype") if len({getattr(row, name) for row in rows}) > 1]
    own = _SOURCE_COLUMNS if any(row.sources is not None for row in rows) else ()
    columns = [*shown, "processor", "arm", "setting", *_SUMMARY, *own, "texts as ar"]
    console.table(columns, [_summary_row(row, shown, own) for row in rows])


def _summary_row(row: AblationRow, shown: Sequence[str], own: Sequence[str]) -> list[object]:
    figures = [None if (value := row.figure(key)) is None else float(value)
               for key in _SUMMARY.values()]  # fmt: skip
    same = round((row.figure("same_as_ar_mean") or 0.0) * row.rows)
    names = [getattr(row, name) for name in (*shown, "processor", "method")]
    more = [row.fed_per_step, row.calibration] if own else []
    return [*names, _setting(row), *figures, *more, f"{same} of {row.rows}"]


def _setting(row: AblationRow) -> str:
    """What an arm is set to, in the words of the file's columns; its gamma can be --grid-nodes."""
    from trtla.bench.ablation_table import SETTING

    names = SETTING[2 : SETTING.index("model")]
    flags = [f"{name} {value}" for name in names if (value := getattr(row, name)) is not None]
    shown = ", ".join(flags) or "-"
    return shown.replace("gamma ", "nodes ") if row.method == "auto-nodes" else shown
