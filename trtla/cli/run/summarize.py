"""`trtla summarize`: latency, tokens per step and ROUGE, as TensorRT-LLM's summarize.py.

The work is in trtla.measuring.summaries; here are flags, checks and printing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.flags import flags_as
from trtla.cli.shared.model import (
    CorpusFlags,
    check_model,
    is_trtllm,
    note_without_drafts,
    open_llm,
    save_corpus,
    use_end,
)
from trtla.cli.shared.outputs import check_folder, model_files
from trtla.cli.shared.templates import check_texts
from trtla.cli.shared.values import TOKENS
from trtla.console import Console, command_line, counted, duration
from trtla.errors import TORCH, UsageError, require, trtllm_cannot
from trtla.settings.eval_tasks import EVAL_TASKS, EvalTask
from trtla.settings.eval_tasks import SUMMARIZE as SUMMARIZE_TASK
from trtla.settings.messages import Asking
from trtla.settings.upstream.programs import SUMMARIZE

if TYPE_CHECKING:
    from trtla.data.eval_items import EvalItem
    from trtla.data.prompt_sets import Ids
    from trtla.measuring.arms import Arm
    from trtla.measuring.summaries import SummarySide
    from trtla.results.rows import Row
    from trtla.runtime.limits import ExecutorLimits


@dataclass(frozen=True, kw_only=True)
class SummarizeFlags(CorpusFlags):
    """The command's flags as click parsed them."""

    hf_model_dir: str | None = opt.flag(
        "The Hugging Face folder: tokenizer for all sides, model for --test-hf.",
        section="Model",
        basic=True,
        type=opt.MODEL,
    )
    dataset: str = opt.flag(
        "CNN/DailyMail from the Hugging Face hub; a .jsonl file of {article, highlights} lines; or "
        "a folder of parquet, arrow or .jsonl files.",
        section="Data",
        basic=True,
        default="cnn_dailymail",
        metavar="cnn_dailymail|PATH",
    )
    eval_task: str = opt.flag(
        "The task: columns of the data set, and prompts. Others than summarize need a local "
        "--dataset; eval_context_ppl computes the perplexity of texts.",
        section="Data",
        type=click.Choice(list(EVAL_TASKS)),
        default=SUMMARIZE_TASK,
    )
    max_ite: int = opt.flag("Most batches to decode.", section="Data", default=20)
    batch_size: int = opt.flag("Articles in a batch.", section="Data", default=1)
    max_input_len: int = opt.flag(
        "Longest prompt in tokens; longer articles lose their beginning.",
        section="Data",
        type=TOKENS,
        default=923,
    )
    test_trtla: bool = opt.flag("Measure the engine, with lookahead and without.", section="Sides")
    test_hf: bool = opt.flag("Measure transformers' greedy generate.", section="Sides")
    rouge1_threshold: float | None = opt.flag(
        "Exit with code 3 when the first side's ROUGE-1 (0 to 100) is below.", section="Output"
    )
    eval_ppl: bool = opt.flag(
        "Compute the perplexity of every prompt with its output under the engine's model.",
        section="Output",
    )
    ppl_threshold: float | None = opt.flag(
        "Exit with code 3 when the mean perplexity of --eval-ppl is above.", section="Output"
    )
    check_accuracy: bool = opt.flag(
        "Check with thresholds of 15 where no others are given: ROUGE-1, and --eval-ppl's mean.",
        section="Output",
    )
    wide: bool = opt.wide_flag("Output")
    output: str | None = opt.flag(
        "Write every summary to this file, JSON lines.", "-o", section="Output", type=opt.PATH
    )

    asking: Asking
    end_id: int | None

    @property
    def task(self) -> EvalTask:
        return EVAL_TASKS[self.eval_task]


@click.command(
    cls=Command,
    instead_of=SUMMARIZE,
    short_help="Articles -> latency, tokens per step, ROUGE.",
    examples=[
        "trtla summarize engine --hf-model-dir llama-3-8b --test-trtla --test-hf",
        "trtla summarize engine --dataset articles.jsonl --max-ite 10 --json",
    ],
)
@opt.model_flags(required=False, show_default="--hf-model-dir, with --test-hf alone")
@opt.flags_of(SummarizeFlags)
@opt.length_flag(basic=False, default=100, help="Longest summary in tokens.")
@opt.chat_flags
@opt.sampling_flags
@opt.stop_ids_flag
@opt.end_flag
@opt.drafter_flags
@opt.corpus_flags
@opt.draft_flags
@opt.trtllm_flags
@opt.json_flag("Print one JSON document.", "Output")
@click.pass_obj
def summarize(console: Console, /, **values: Any) -> None:
    """Summarize articles and measure: latency, tokens/s, tokens per step, ROUGE.

    Behaves as TensorRT-LLM's summarize.py: the same prompts, truncation, warm-up and figures.
    Without --test-trtla and --test-hf the engine is measured.
    """
    from trtla.data.eval_items import load_items
    from trtla.measuring import summaries as work

    if values["test_hf"] and not values["test_trtla"]:
        values["engine_dir"] = values["engine_dir"] or values["hf_model_dir"]
    if values["engine_dir"] is None:
        raise UsageError("no model is named", "give --engine-dir a model folder or a GGUF file")
    flags = flags_as(SummarizeFlags, values)
    flags = _of_task(console, flags)
    _check(flags)
    check_model(flags)
    note_without_drafts(console.note, flags.engine_dir, [flags.drafting])
    work.require_extras(flags.dataset, flags.task)
    folder = flags.options.tokenizer_dir or flags.hf_model_dir
    options = replace(flags.options, tokenizer_dir=folder)
    check_texts(console, flags.asking, flags.engine_dir, options)
    seed = flags.sampling.seed
    evaluated = load_items(flags.dataset, flags.task, flags.max_ite * flags.batch_size, seed)
    rows, sides, prompts = _measure(console, flags, evaluated)
    if not sides:  # a serving rank of mpirun has nothing to report
        return
    _print(console, rows, len(prompts), flags)
    if flags.output:
        with Path(flags.output).open("w", encoding="utf-8") as file:
            for line in work.items(sides, prompts):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    rouge1, ppl = _thresholds(flags)
    if rouge1 is not None:
        work.check_rouge1(rows[0], rouge1)
    if ppl is not None:
        work.check_perplexity(rows[0], ppl)


_THRESHOLD = 15.0
"""The default of both of summarize.py's thresholds."""


def _of_task(console: Console, flags: SummarizeFlags) -> SummarizeFlags:
    """Return the flags as the task has them: of a context, the perplexity is all that counts."""
    if not flags.task.context_only:
        return flags
    console.note(f"note: {flags.eval_task} decodes one token of each text, for its perplexity")
    return replace(flags, eval_ppl=True, sampling=replace(flags.sampling, max_output_len=1))


def _thresholds(flags: SummarizeFlags) -> tuple[float | None, float | None]:
    """Return the least ROUGE-1 and the highest perplexity; None: not checked."""
    default = _THRESHOLD if flags.check_accuracy else None
    rouge1 = default if flags.rouge1_threshold is None else flags.rouge1_threshold
    ppl = default if flags.ppl_threshold is None else flags.ppl_threshold
    return None if flags.task.context_only else rouge1, ppl if flags.eval_ppl else None


def _check(flags: SummarizeFlags) -> None:
    """Refuse what can be refused before a model is opened."""
    if flags.test_hf and not flags.hf_model_dir:
        raise UsageError("--test-hf needs a model", "give --hf-model-dir MODEL")
    if flags.test_hf:
        require("--test-hf", *TORCH)
    require("summarize", "transformers")
    if flags.test_hf and flags.sampling.temperature > 0:
        raise UsageError(
            f"--test-hf is greedy, and temperature is {flags.sampling.temperature}",
            "omit --temperature or --test-hf",
        )
    if flags.ppl_threshold is not None and not flags.eval_ppl:
        raise UsageError(
            f"--ppl-threshold {flags.ppl_threshold:g} is for perplexities, which are not computed",
            "add --eval-ppl",
        )
    if flags.rouge1_threshold is not None and flags.task.context_only:
        raise UsageError(
            f"--rouge1-threshold is for references, which {flags.eval_task} lacks",
            "use --ppl-threshold",
        )
    if flags.eval_ppl and is_trtllm(flags.engine_dir):
        raise trtllm_cannot(flags.engine_dir, "whose log probabilities are not read")
    if flags.output:
        models = [folder for folder in (flags.engine_dir, flags.hf_model_dir) if folder]
        files = [file for folder in models for file in model_files(folder, ".jsonl")]
        check_folder(Path(flags.output), "--output", flags.dataset, *files)
    if flags.eval_task != SUMMARIZE_TASK and flags.dataset == "cnn_dailymail":
        raise UsageError(
            f"the task {flags.eval_task} reads a local data set, not the hub's",
            f"give --dataset PATH: a .jsonl file with {flags.task.lines}, or the data set's folder",
        )


def _measure(
    console: Console, flags: SummarizeFlags, evaluated: list[EvalItem]
) -> tuple[list[Row], list[SummarySide], list[Ids]]:
    """Measure the sides in turns, the engine's first; its limits cut the prompts of all."""
    from trtla.measuring import summaries as work
    from trtla.measuring.encoding import take_tokenizer
    from trtla.measuring.turns import rows
    from trtla.results.rows import Cell
    from trtla.runtime.device import resolve_device
    from trtla.runtime.threads import num_threads

    folder = flags.options.tokenizer_dir or flags.hf_model_dir
    size = flags.batch_size
    with open_llm(flags, tokenizer_dir=folder, max_batch_size=size, find_head=False) as llm:
        if not llm.is_leader:
            return [], [], []
        use_end(llm, flags.end_id)
        tokenizer, longest = take_tokenizer(llm), _cap(console, flags, llm.limits)
        texts = [flags.task.prompt(item.text) for item in evaluated]
        prompts = work.encode(tokenizer, texts, longest, flags.asking)
        by_engine = flags.test_trtla or not flags.test_hf
        ours = work.engine_arms(llm, flags.options.drafter) if by_engine else []
        arms: list[Arm] = [*ours]
        stored = llm.engine.config.pretrained_config.dtype
        if flags.test_hf and flags.hf_model_dir:
            device, dtype = flags.options.device, flags.options.dtype
            ends = None if flags.end_id is None else llm.end_ids
            tokens = len(prompts) * flags.sampling.max_output_len
            _note_slow(console, stored if dtype == "auto" else dtype, device, tokens)
            arms.append(work.hf_arm(flags.hf_model_dir, device, dtype, stored, ends))
        cell = Cell.fill(
            flags.sampling,
            device=str(resolve_device(flags.options.device)),
            dtype=arms[0].compute_type or stored,
            threads=num_threads(),
            batch_size=size,
            category=flags.dataset,
            executor=llm.description,
        )
        measured = work.measure_sides(cell, arms, prompts, flags.sampling, console.progress)
        if ours:
            ours[0].use_memory()
        by_text = work.perplexities(llm, prompts, measured) if flags.eval_ppl else {}
        save_corpus(console, llm, flags.save_corpus)
    stops = (*flags.sampling.stop_ids, *([] if flags.end_id is None else [flags.end_id]))
    references = [] if flags.task.context_only else [item.reference for item in evaluated]
    sides = {
        name: replace(
            work.side(name, run, tokenizer.inner, references, stops),
            perplexities=tuple(map(by_text.__getitem__, zip(prompts, run.outputs, strict=True)))
            if by_text
            else (),
        )
        for name, (run,) in measured.runs().items()
    }
    scored = rows(measured, score=lambda turns, name: sides[name].means)
    return scored, list(sides.values()), prompts


def _note_slow(console: Console, dtype: str, device: str, tokens: int) -> None:
    """Announce Hugging Face's float16 on CPUs, which takes about a second a token."""
    from trtla.runtime.device import resolve_device

    if dtype == "float16" and resolve_device(device).type == "cpu":
        console.note(
            f"note: Hugging Face may take {duration(tokens)} for {counted(tokens, 'token')}: in "
            "float16 a CPU writes about one a second; --dtype float32 is faster"
        )


def _cap(console: Console, flags: SummarizeFlags, limits: ExecutorLimits) -> int:
    """Return --max-input-len, or the engine's limit if that is less."""
    from trtla.measuring.encoding import prompt_room

    room = prompt_room(limits, flags.sampling.max_output_len)
    if flags.max_input_len > room:
        console.note(f"note: max_input_len {flags.max_input_len} is cut to the engine's {room}")
    return min(flags.max_input_len, room)


def _print(console: Console, rows: Sequence[Row], items: int, flags: SummarizeFlags) -> None:
    """Print TensorRT-LLM's lines for each side, which programs read, then one table; or one JSON
    document, which has all digits."""
    from trtla.formats.gguf.folder import model_name
    from trtla.results.documents import SCHEMA_VERSION, environment
    from trtla.results.rows import Summarize

    if console.json:
        settings = {
            "model": model_name(flags.engine_dir),
            "dataset": flags.dataset,
            "eval_task": flags.eval_task,
            "batch_size": flags.batch_size,
            "max_input_len": flags.max_input_len,
            "max_output_len": flags.sampling.max_output_len,
            "temperature": flags.sampling.temperature,
            "seed": flags.sampling.seed,
        }
        filled = Summarize(
            schema_version=SCHEMA_VERSION,
            environment=environment(command_line()),
            settings=settings,
            rows=tuple(rows),
            items=items,
        )
        console.document(filled.document())
        return
    _print_sides(console, rows)
    if not flags.task.context_only:  # texts of one token say nothing about decoding
        _print_speeds(console, rows, items, wide=flags.wide)


def _print_sides(console: Console, rows: Sequence[Row]) -> None:
    from trtla.measuring.summaries import ROUGE

    for row in rows:
        console.out(f"{row.arm} (total latency: {row.time_s:.3f} sec)")
        console.out(f"{row.arm} (total output tokens: {row.output_tokens})")
        console.out(f"{row.arm} (tokens per second: {row.tokens_per_s:.3f})")
        console.out(f"{row.arm} beam 0 result")
        for key in ROUGE:
            if (figure := getattr(row, key)) is not None:
                console.out(f"  {key}: {figure:.3f}")
        if row.perplexity is not None:
            console.out(f"  Per-token perplexity: {row.perplexity:.3f}")


def _print_speeds(console: Console, rows: Sequence[Row], items: int, *, wide: bool) -> None:
    from trtla.measuring.summaries import ENGINE, PLAIN
    from trtla.measuring.tables import ALL_COLUMNS, USUAL, tables

    console.out("\n\n".join(tables(rows, console.table_text, ALL_COLUMNS if wide else USUAL)))
    speed = {row.arm: row.tokens_per_s or 0.0 for row in rows}
    for other, label in ((PLAIN, "plain decoding"), ("hugging_face", "Hugging Face")):
        if speed.get(other) and ENGINE in speed:
            console.out(f"speed-up over {label}: {speed[ENGINE] / speed[other]:.2f}x")
    if ENGINE in speed and PLAIN in speed:
        console.out(f"summaries equal to plain decoding's: {rows[0].equal_texts} of {items}")
