"""`trtla bench --ablation`: its flags, checks and printing; the work is in sweep.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtla.cli.shared.model import (
    check_drafters,
    check_vocabulary,
    note_without_drafts,
)
from trtla.cli.shared.params import check_folder, source
from trtla.cli.shared.templates import check_texts
from trtla.console import Console, command_line, counted
from trtla.errors import UsageError
from trtla.extras.bench.ablation_arms import (
    KNOWN_METHODS,
    METHODS,
    NODES,
    OWN_PROMPT,
    SOURCE_METHODS,
    TASK_FILES,
    WITHOUT,
)
from trtla.extras.bench.flags import (
    FULL_REPEATS,
    TASK_PROMPTS,
    BenchFlags,
    check_choices,
    shared_setup,
)
from trtla.extras.bench.output import run, show
from trtla.extras.bench.ways import Way
from trtla.files import json_text, read_json, read_text, write_whole, written
from trtla.measuring.arms import AR
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
    from trtla.data.prompt_sets import PromptSet
    from trtla.extras.bench.sweep import Results, Sweep
    from trtla.results.rows import Row

_DOCUMENT = ".json"
_PROCESSORS = ("greedy", "nucleus:0.8:0.9")


def run_ablation_command(
    console: Console, flags: BenchFlags, lookahead: LookaheadConfig | None
) -> None:
    """Check the flags, note the number of decodings, measure, and print a summary."""
    sweep = _check(console, flags, lookahead)
    output = _table(flags)
    check_texts(console, flags.asking, flags.engine_dir, flags.options, sweep.sets)
    with written(output, "give another --output"), output.open("a", encoding="utf-8"):
        console.note(f"note: {_extent(sweep)}")
    kept = f"note: decodings so far are in {output.with_suffix('.jsonl')}; the same command resumes"
    try:
        results = run(console, sweep)
    except KeyboardInterrupt:
        console.note(kept)
        raise
    if results is None:  # a serving rank of mpirun has nothing to report
        return
    _write(console, results, sweep, output, flags)
    if flags.output_format == "md":
        results.rows = _over_all(results.rows)
    show(console, results, sweep, flags.output_format, wide=flags.wide)


def _over_all(rows: list[Row]) -> list[Row]:
    """Return the rows over all tasks, or those of the only one."""
    from trtla.extras.bench.documents import EVERY_CATEGORY

    return [row for row in rows if row.category == EVERY_CATEGORY] or rows


def _write(
    console: Console, results: Results, sweep: Sweep, output: Path, flags: BenchFlags
) -> None:
    from trtla.extras.bench.results import csv_text, document, rows_text
    from trtla.results.documents import environment

    machine, means = environment(command_line()), output.with_name(f"{output.stem}_means.csv")
    texts = {output: rows_text(results.decodings), means: csv_text(results, sweep, machine)}
    if _is_document(flags):
        texts[Path(flags.output)] = json_text(document(results, sweep, machine))
    for path, text in texts.items():
        with written(path, "give another --output"):
            write_whole(path, text)
    console.note(f"note: decodings are in {output}, rows over them in {means}")
    if _is_document(flags):
        console.note(f"note: the document is {flags.output}")


def _extent(sweep: Sweep) -> str:
    models = len(sweep.devices) * len(sweep.dtypes)
    factors = {
        "arm": len(sweep.ways),
        "prompt": sum(len(chosen.questions) for chosen in sweep.sets),
        "processor": len(sweep.filters),
        "repeat": sweep.rounds,
    }
    return (
        f"{counted(prod(factors.values()) * models, 'decoding')} of up to "
        f"{counted(sweep.sampling.max_output_len, 'token')}: "
        f"{', '.join(counted(count, noun) for noun, count in factors.items())}"
        + (f", {models} devices and types" if models > 1 else "")
    )


def _check(console: Console, flags: BenchFlags, lookahead: LookaheadConfig | None) -> Sweep:
    """Make the sweep, with all checks that need no model."""
    if len(flags.threads) > 1:
        raise UsageError(
            f"--threads has {len(flags.threads)} numbers, and --ablation takes one",
            "run it once for each, with an --output of its own",
        )
    arms = _served(console, flags, _arms(flags))
    drafting = [(arm.lookahead, arm.drafter) for arm in arms]
    if note_without_drafts(console.note, flags.engine_dir, drafting):
        arms = [arm for arm in arms if arm.drafter != LOOKAHEAD]
    named = [(f"--arms {arm.name}", arm.drafter) for arm in arms]
    models = check_drafters(flags.engine_dir, named, flags.options)
    filters = dict.fromkeys(map(parse_processor, flags.processor or _PROCESSORS))
    sets = _sets(flags)
    _check_output(flags)
    from trtla.extras.bench.sweep import Sweep

    drafters = [arm.drafter for arm in arms if arm.drafter.most_tokens]
    return Sweep(
        **shared_setup(flags, lookahead, drafters, models),
        sampling=SamplingParams(flags.sampling.max_output_len, seed=flags.seed),
        sets=tuple(sets),
        filters=tuple(filters),
        rounds=flags.repeats or (FULL_REPEATS if flags.full else 1),
        ways=tuple(arms),
        ablation=_table(flags).with_suffix(".jsonl"),
    )


def _check_output(flags: BenchFlags) -> None:
    """Refuse to replace files that an ablation of this version has not written."""
    output = Path(flags.output)
    if output.suffix.lower() not in (".csv", _DOCUMENT):
        raise UsageError(
            f"--output {output} is neither a .csv nor a .json file", "give it one of these endings"
        )
    check_folder(output, "--output")
    if _is_document(flags) and output.exists() and not {"rows", "cells"} <= set(read_json(output)):
        raise UsageError(f"{output} is another file, not an ablation's", "give another --output")
    table = _table(flags)
    if table.exists() and not _is_table(table):
        raise UsageError(
            f"{table} is not an ablation's table of this version", "give another --output"
        )
    journal = table.with_suffix(".jsonl")
    if table.exists() and table.stat().st_size and not journal.exists():
        raise UsageError(
            f"{table} has decodings, and {journal}, which they are kept in, is not there",
            "give another --output, or move the file away",
        )


def _is_table(path: Path) -> bool:
    from trtla.extras.bench.documents import Decoding

    columns = read_text(path).partition("\n")[0].split(",")
    return columns == [""] or {"arm", "output_sha256"} <= {*columns} <= {*Decoding.model_fields}


def _table(flags: BenchFlags) -> Path:
    """Return the file of decodings."""
    return Path(flags.output).with_suffix(".csv") if _is_document(flags) else Path(flags.output)


def _is_document(flags: BenchFlags) -> bool:
    return Path(flags.output).suffix.lower() == _DOCUMENT


def _served(console: Console, flags: BenchFlags, arms: list[Way]) -> list[Way]:
    """Return the arms that can run: the shipped draft model has the shipped model's vocabulary."""
    if source(click.get_current_context(), "draft_model") != "default":
        return arms
    try:
        check_vocabulary(flags.draft_model, flags.engine_dir, flags.options.tokenizer_dir)
    except UsageError:
        left = [arm for arm in arms if arm.drafter.draft_model is None]
        names = ", ".join(dict.fromkeys(arm.name for arm in arms if arm not in left))
        if names:
            console.note(f"note: {names} need a --draft-model of this vocabulary, and are skipped")
        return left
    return arms


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
    """List the drafters of a method: every combination of its grids is an arm."""
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


def _sets(flags: BenchFlags) -> list[PromptSet]:
    """Return the tasks as sets of prompts."""
    from trtla.data.prompt_sets import PromptSet, Question, load_sets

    named = source(click.get_current_context(), "prompts") != "default"
    most = flags.prompts_per_task or (sys.maxsize if flags.full else TASK_PROMPTS)
    if flags.input_text is None:
        names = flags.prompts if named else tuple(TASK_FILES.values())
        return load_sets(names, flags.categories, most)
    for name, is_set in (("prompts", named), ("categories", bool(flags.categories))):
        if is_set:
            raise UsageError(f"--input-text and --{name} exclude each other", "omit one of them")
    if not flags.input_text:
        raise UsageError("--input-text is empty", "give at least one character")
    return [PromptSet(OWN_PROMPT, (Question((flags.input_text,)),))]
