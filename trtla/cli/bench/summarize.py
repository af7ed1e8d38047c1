"""`trtla summarize`: latency, tokens per step and ROUGE, as TensorRT-LLM's summarize.py.

The work is in trtla.bench.summarize; here are flags, checks and printing.
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
from trtla.cli.shared.model import (
    CorpusFlags,
    check_model,
    note_without_drafts,
    open_llm,
    save_corpus,
    use_end,
    with_own_type,
    with_trtllm_settings,
)
from trtla.cli.shared.params import check_folder, need_model
from trtla.cli.shared.templates import check_texts
from trtla.cli.shared.values import TOKENS
from trtla.console import Console, command_line
from trtla.errors import UsageError
from trtla.settings.fields import parsed
from trtla.settings.messages import Asking
from trtla.settings.upstream.run import SUMMARIZE

if TYPE_CHECKING:
    from trtla.bench.arms import Arm
    from trtla.bench.summarize import Article, SummarySide
    from trtla.data.prompt_sets import Ids
    from trtla.results.bench_documents import Row
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
        "CNN/DailyMail from the Hugging Face hub, or a file of {article, highlights} lines.",
        section="Data",
        basic=True,
        default="cnn_dailymail",
        metavar="cnn_dailymail|PATH.jsonl",
    )
    max_ite: int = opt.flag("Most batches to decode.", section="Data", default=20)
    batch_size: int = opt.flag("Articles in a batch.", section="Data", default=1)
    max_input_len: int = opt.flag(
        "Longest prompt in tokens; longer articles lose their beginning.",
        section="Data",
        type=TOKENS,
        default=923,
        alias="max_input_length",
    )
    test_trtla: bool = opt.flag("Measure the engine, with lookahead and without.", section="Sides")
    test_hf: bool = opt.flag("Measure transformers' greedy generate.", section="Sides")
    rouge1_threshold: float | None = opt.flag(
        "Exit with code 3 when the first side's ROUGE-1 (0 to 100) is below.", section="Output"
    )
    output: str | None = opt.flag(
        "Write every summary to this file, JSON lines.", "-o", section="Output", type=opt.PATH
    )

    asking: Asking
    end_id: int | None


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
@opt.alias("output_len", now="max_output_len", type=TOKENS)
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
    from trtla.bench import summarize as work

    if values["test_hf"] and not values["test_trtla"]:
        values["engine_dir"] = values["engine_dir"] or values["hf_model_dir"]
    need_model(values["engine_dir"])
    flags = parsed(SummarizeFlags, with_own_type(with_trtllm_settings(values)))
    _check(flags)
    check_model(flags)
    note_without_drafts(console.note, flags.engine_dir, [flags.drafting])
    work.require_extras(flags.dataset)
    folder = flags.options.tokenizer_dir or flags.hf_model_dir
    options = replace(flags.options, tokenizer_dir=folder)
    check_texts(console, flags.asking, flags.engine_dir, options)
    seed = flags.sampling.seed
    articles = work.load_articles(flags.dataset, flags.max_ite * flags.batch_size, seed)
    rows, sides, prompts = _measure(console, flags, articles)
    if not sides:  # a serving rank of mpirun has nothing to report
        return
    _print(console, rows, len(prompts), flags)
    if flags.output:
        with Path(flags.output).open("w", encoding="utf-8") as file:
            for line in work.items(sides, prompts):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    if flags.rouge1_threshold is not None:
        work.check_rouge1(rows[0], flags.rouge1_threshold)


def _check(flags: SummarizeFlags) -> None:
    """Refuse what can be refused before torch is imported."""
    if flags.test_hf and not flags.hf_model_dir:
        raise UsageError("--test-hf needs a model", "give --hf-model-dir MODEL")
    if flags.test_hf and flags.sampling.temperature > 0:
        raise UsageError(
            f"--test-hf is greedy, and temperature is {flags.sampling.temperature}",
            "omit --temperature or --test-hf",
        )
    if flags.output:
        check_folder(Path(flags.output), "--output")


def _measure(
    console: Console, flags: SummarizeFlags, articles: list[Article]
) -> tuple[list[Row], list[SummarySide], list[Ids]]:
    """Measure the sides in turns, the engine's first; its limits cut the prompts of all."""
    from trtla.bench import summarize as work
    from trtla.bench.hardware import torch_device
    from trtla.bench.opened import take_tokenizer
    from trtla.bench.turns import rows
    from trtla.results.bench_documents import Cell
    from trtla.runtime.threads import num_threads

    folder = flags.options.tokenizer_dir or flags.hf_model_dir
    size = flags.batch_size
    with open_llm(flags, tokenizer_dir=folder, max_batch_size=size) as llm:
        if not llm.is_leader:
            return [], [], []
        use_end(llm, flags.end_id)
        tokenizer, longest = take_tokenizer(llm), _cap(console, flags, llm.limits)
        prompts = work.encode(tokenizer, articles, longest, flags.asking)
        by_engine = flags.test_trtla or not flags.test_hf
        ours = work.engine_arms(llm, flags.options.drafter) if by_engine else []
        arms: list[Arm] = [*ours]
        stored = llm.engine.config.pretrained_config.dtype
        if flags.test_hf and flags.hf_model_dir:
            device, dtype = flags.options.device, flags.options.dtype
            ends = None if flags.end_id is None else llm.end_ids
            arms.append(work.hf_arm(flags.hf_model_dir, device, dtype, stored, ends))
        cell = Cell.fill(
            flags.sampling,
            device=str(torch_device(flags.options.device)),
            dtype=arms[0].compute_type or stored,
            threads=num_threads(),
            batch_size=size,
            category=flags.dataset,
            executor=llm.description,
        )
        measured = work.measure_sides(cell, arms, prompts, flags.sampling, console.progress)
        if ours:
            ours[0].use_memory()
        save_corpus(console, llm, flags.save_corpus)
    stops = (*flags.sampling.stop_ids, *([] if flags.end_id is None else [flags.end_id]))
    sides = {name: work.side(name, run, tokenizer.inner, articles, stops)
             for name, (run,) in measured.runs().items()}  # fmt: skip
    scored = rows(measured, score=lambda turns, name: sides[name].rouge)
    return scored, list(sides.values()), prompts


def _cap(console: Console, flags: SummarizeFlags, limits: ExecutorLimits) -> int:
    """Return --max-input-len, or the engine's limit if that is less."""
    from trtla.bench.opened import prompt_room

    room = prompt_room(limits, flags.sampling.max_output_len)
    if flags.max_input_len > room:
        console.note(f"note: max_input_len {flags.max_input_len} is cut to the engine's {room}")
    return min(flags.max_input_len, room)


def _print(console: Console, rows: Sequence[Row], items: int, flags: SummarizeFlags) -> None:
    """Print TensorRT-LLM's lines for each side, which programs read, then one table; or one JSON
    document, which has all digits."""
    from trtla.bench.summarize import ENGINE, PLAIN, ROUGE
    from trtla.bench.tables import tables
    from trtla.formats.gguf.folder import model_name
    from trtla.results.bench_documents import Summarize
    from trtla.results.documents import SCHEMA_VERSION, environment

    if console.json:
        settings = {
            "model": model_name(flags.engine_dir),
            "dataset": flags.dataset,
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
    for row in rows:
        console.out(f"{row.arm} (total latency: {row.time_s:.3f} sec)")
        console.out(f"{row.arm} (total output tokens: {row.output_tokens})")
        console.out(f"{row.arm} (tokens per second: {row.tokens_per_s:.3f})")
        console.out(f"{row.arm} beam 0 result")
        for key in ROUGE:
            console.out(f"  {key}: {getattr(row, key):.3f}")
    console.out("\n\n".join(tables(rows, console.table_text)))
    speed = {row.arm: row.tokens_per_s or 0.0 for row in rows}
    for other, label in ((PLAIN, "plain decoding"), ("hugging_face", "Hugging Face")):
        if speed.get(other) and ENGINE in speed:
            console.out(f"speed-up over {label}: {speed[ENGINE] / speed[other]:.2f}x")
    if ENGINE in speed and PLAIN in speed:
        console.out(f"summaries equal to plain decoding's: {rows[0].equal_texts} of {items}")
