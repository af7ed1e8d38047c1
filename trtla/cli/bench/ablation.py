"""`trtla bench --ablation`: its flags, checks and printing; the work is in trtla.bench.ablation."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.bench.ablation_arms import (
    KNOWN_METHODS,
    METHODS,
    NODES,
    OWN_PROMPT,
    SOURCE_METHODS,
    TASKS,
    WITHOUT,
    TaskPrompt,
    cases,
    load_tasks,
    prompts_of,
)
from trtla.bench.arms import AR, Way
from trtla.cli.bench.bench_flags import (
    FULL_REPEATS,
    TASK_PROMPTS,
    BenchFlags,
    check_choices,
    print_as,
    shared_setup,
)
from trtla.cli.shared.model import (
    check_drafters,
    check_texts,
    check_vocabulary,
    note_without_drafts,
)
from trtla.cli.shared.params import check_folder, source
from trtla.console import Console, command_line, counted, duration
from trtla.errors import UsageError
from trtla.files import json_text, read_json, write_whole, written
from trtla.interrupts import INTERRUPTS
from trtla.settings.drafting import (
    DRAFT_PREFIX,
    LOOKAHEAD,
    NO_DRAFTER,
    SOURCES,
    DrafterSettings,
    DraftOptions,
    NgramKind,
)
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig
from trtla.settings.sampling import SamplingParams, parse_processor

if TYPE_CHECKING:
    from trtla.bench.ablation import Ablated, AblationPlan, OnRow
    from trtla.bench.tables import Cells
    from trtla.results.bench_documents import AblationRow

_DOCUMENT = ".json"
_PROCESSORS = ("greedy", "nucleus:0.8:0.9")


def run_ablation_command(
    console: Console, flags: BenchFlags, lookahead: LookaheadConfig | None
) -> None:
    """Check, say how much it is, measure, and print a summary."""
    ablation = _check(console, flags, lookahead)
    check_texts(console, flags.asking, (flags.engine_dir, flags.options.tokenizer_dir))
    console.note(f"note: {_extent(ablation)}")
    from trtla.bench.ablation import run_ablation
    from trtla.bench.tables import means_path, means_text

    watched = partial(_watched, console, len(ablation.arms))
    with INTERRUPTS.saying(
        lambda: f"note: rows so far are in {ablation.output}; the same command goes on"
    ):
        done = run_ablation(ablation, watched, lambda text: console.note(f"note: {text}"))
    console.note(f"note: rows are in {ablation.output}, means in {means_path(ablation.output)}")
    if _is_document(flags):
        with written(Path(flags.output), "give another --output"):
            write_whole(Path(flags.output), json_text(_document(ablation, done)))
        console.note(f"note: the document is {flags.output}")
    print_as(
        console,
        flags.output_format,
        lambda: _document(ablation, done),
        lambda: means_text(done.rows.values()),
        lambda: _print(console, done.overall()),
    )


def _extent(ablation: AblationPlan) -> str:
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
            last = (
                f"{row['task']} {row['prompt_id']}, {row['processor']}, repeat {row['repeat']}, "
                f"{row['method']}: {float(row['tokens_per_s']):.0f} tok/s"
            )
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
    asked = [(arm.lookahead, arm.drafter) for arm in made]
    if note_without_drafts(console.note, flags.engine_dir, asked):
        made = [arm for arm in made if arm.drafter != LOOKAHEAD]
    named = [(f"--arms {arm.name}", arm.drafter) for arm in made]
    models = check_drafters(flags.engine_dir, named, flags.options)
    processors = tuple(map(parse_processor, flags.processor or _PROCESSORS))
    prompts, repeats = _prompts(flags), flags.repeats or (FULL_REPEATS if flags.full else 1)
    output = Path(flags.output)
    if output.suffix.lower() not in (".csv", _DOCUMENT):
        raise UsageError(
            f"--output {output} is neither a .csv nor a .json file", "give it one of these endings"
        )
    check_folder(output, "--output")
    if _is_document(flags) and output.exists() and "means" not in read_json(output):
        raise UsageError(f"{output} is another file, not an ablation's", "give another --output")
    from trtla.bench.ablation import AblationPlan

    drafting = [arm.drafter for arm in made if arm.drafter.most_tokens]
    return AblationPlan(
        **shared_setup(flags, lookahead, drafting, models),
        sampling=SamplingParams(flags.max_output_len, seed=flags.seed),
        arms=tuple(made),
        cases=tuple(cases(prompts, processors, repeats, flags.seed)),
        output=output.with_suffix(".csv") if _is_document(flags) else output,
    )


def _is_document(flags: BenchFlags) -> bool:
    return Path(flags.output).suffix.lower() == _DOCUMENT


def _served(console: Console, flags: BenchFlags, made: list[Way]) -> list[Way]:
    """The arms that can run: the shipped draft model is for the shipped model's vocabulary."""
    if source(click.get_current_context(), "draft_model") != "default":
        return made
    try:
        check_vocabulary(flags.draft_model, flags.engine_dir, flags.options.tokenizer_dir)
    except UsageError:
        left = [arm for arm in made if arm.drafter.draft_model is None]
        names = ", ".join(dict.fromkeys(arm.name for arm in made if arm not in left))
        if names:
            console.note(f"note: {names} need a --draft-model of this vocabulary, and are skipped")
        return left
    return made


def _arms(flags: BenchFlags) -> list[Way]:
    check_choices("--arms", flags.arms, KNOWN_METHODS)
    if flags.sources and source(click.get_current_context(), "arms") != "default":
        raise UsageError("--sources and --arms exclude each other", "omit one of them")
    methods = SOURCE_METHODS if flags.sources else flags.arms
    triples = tuple(triple for triple in flags.lookahead if triple != "auto")
    fed: dict[str, Sequence[Lookahead | None]] = {
        "lookahead": triples or (None,),
        "lookahead-auto": ("auto",),  # bounded by the engine's triple in every step
        "chain": triples[:1] or (None,),
    }
    return [
        Way(name, lookahead, drafter)
        for name in METHODS
        if name == AR or name in methods
        for drafter in _drafters(name, flags)
        for lookahead in fed.get(name, (AUTOREGRESSIVE,))
    ] + [
        Way(name, "auto", LOOKAHEAD, options)
        for name in SOURCE_METHODS[1:]
        if name in methods
        for options in _tree_options(name, flags)
    ]


def _drafters(method: str, flags: BenchFlags) -> list[DrafterSettings]:
    """Every combination of a method's grids is an arm of its own."""
    draft, kinds = f"{DRAFT_PREFIX}{flags.draft_model}", flags.grid_ngram_kind
    match method:
        case "ar":
            return [NO_DRAFTER]
        case "sd":
            return [DrafterSettings((draft,), gamma) for gamma in flags.grid_gamma]
        case "egag":
            grid = product(flags.grid_gamma_max, flags.grid_ema)
            return [
                DrafterSettings((draft,), most, egag=True, gamma_max=most, ema=ema)
                for most, ema in grid
            ]
        case "nasd":
            return _ngrams(("ngram",), kinds, flags)
        case "chain":
            return _ngrams((draft, "lookahead", "ngram"), kinds[:1], flags)
        case "prompt-lookup":
            return [DrafterSettings((method,), gamma) for gamma in flags.grid_gamma]
    return [LOOKAHEAD]


def _ngrams(
    names: tuple[str, ...], kinds: Sequence[NgramKind], flags: BenchFlags
) -> list[DrafterSettings]:
    grid = product(flags.grid_gamma, kinds, flags.grid_ngram_order, flags.grid_top_k_filler)
    return [
        DrafterSettings(names, gamma, ngram_kind=kind, ngram_order=order, top_k_filler=filler)
        for gamma, kind, order, filler in grid
    ]


def _tree_options(method: str, flags: BenchFlags) -> list[DraftOptions]:
    if method == NODES:
        return [DraftOptions(nodes=count) for count in flags.grid_nodes]
    left = tuple(name for name in SOURCES if name != method.removeprefix(WITHOUT))
    return [DraftOptions(sources=left)]


def _prompts(flags: BenchFlags) -> list[TaskPrompt]:
    named = source(click.get_current_context(), "prompts") != "default"
    if named and flags.input_text is not None:
        raise UsageError("--input-text and --prompts exclude each other", "omit one of them")
    if named:
        from trtla.data.prompt_sets import load_sets

        every = flags.prompts_per_task or (sys.maxsize if flags.full else TASK_PROMPTS)
        return prompts_of(load_sets(flags.prompts, flags.categories, every))
    if flags.input_text is None:
        most = flags.prompts_per_task or (None if flags.full else TASK_PROMPTS)
        return load_tasks(flags.categories or TASKS, most)
    if not flags.input_text:
        raise UsageError("--input-text is empty", "give at least one character")
    if flags.categories:
        raise UsageError("--input-text and --categories exclude each other", "omit one of them")
    return [TaskPrompt(OWN_PROMPT, 0, flags.input_text)]


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


def _document(ablation: AblationPlan, done: Ablated) -> dict[str, Any]:
    from trtla.results.bench_documents import Ablation as Document
    from trtla.results.documents import SCHEMA_VERSION, environment

    return Document(
        schema_version=SCHEMA_VERSION,
        environment=environment(command_line()),
        output=str(ablation.output),
        means=tuple(done.overall()),
    ).document()


def _print(console: Console, means: Sequence[AblationRow]) -> None:
    places = [name for name in ("device", "dtype") if len({getattr(r, name) for r in means}) > 1]
    own = _SOURCE_COLUMNS if any(row.sources is not None for row in means) else ()
    rows = []
    for row in means:
        names = [getattr(row, name) for name in (*places, "processor")]
        figures = [row.figure(key) for key in _SUMMARY.values()]
        more = [row.fed_per_step, row.calibration] if own else []
        same = round((row.figure("same_as_ar_mean") or 0.0) * row.rows)
        shown = [None if value is None else float(value) for value in figures]
        rows.append([row.method, _setting(row), *names, *shown, *more, f"{same} of {row.rows}"])
    columns = ["arm", "setting", *places, "processor", *_SUMMARY, *own, "texts as ar"]
    console.table(columns, rows)


def _setting(row: AblationRow) -> str:
    """What an arm is set to, in the words of the file's columns; its gamma can be --grid-nodes."""
    from trtla.bench.tables import SETTING

    names = SETTING[2 : SETTING.index("model")]
    flags = [f"{name} {value}" for name in names if (value := getattr(row, name)) is not None]
    shown = ", ".join(flags) or "-"
    return shown.replace("gamma ", "nodes ") if row.method == "auto-nodes" else shown
