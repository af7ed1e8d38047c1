"""`trtla summarize`: latency, tokens per step and ROUGE, as TensorRT-LLM's summarize.py.

The work is in trtla.bench.summarize; here are flags, checks and printing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared.command import Command
from trtla.cli.shared.model import (
    CorpusFlags,
    check_model,
    check_texts,
    open_llm,
    save_corpus,
)
from trtla.cli.shared.options import (
    MODEL,
    PATH,
    chat_flags,
    corpus_flags,
    draft_flags,
    drafter_flags,
    json_flag,
    model_flags,
    sampling_flags,
    setting,
    switch,
    trtllm_flags,
)
from trtla.cli.shared.params import check_folder
from trtla.cli.shared.values import COUNT, TOKENS
from trtla.console import Console, command_line
from trtla.errors import UsageError
from trtla.settings.fields import parsed
from trtla.settings.messages import Asking

if TYPE_CHECKING:
    from trtla.bench.arms import Arm
    from trtla.bench.summarize import Article, SummarySide
    from trtla.data.prompt_sets import Ids
    from trtla.results.documents import Side
    from trtla.runtime.limits import ExecutorLimits


@dataclass(frozen=True)
class SummarizeFlags(CorpusFlags):
    """The command's flags as click parsed them."""

    hf_model_dir: str | None
    asking: Asking
    dataset: str
    test_hf: bool
    test_trtla: bool
    max_ite: int
    batch_size: int
    max_input_length: int
    output_len: int
    rouge1_threshold: float | None
    output: str | None

    @property
    def run_engine(self) -> bool:
        """Whether the engine is measured: on request, and when nothing is."""
        return self.test_trtla or not self.test_hf


@click.command(
    cls=Command,
    short_help="Articles -> latency, tokens per step, ROUGE.",
    examples=[
        "trtla summarize --engine-dir engine --hf-model-dir llama-3-8b --test-trtla --test-hf",
        "trtla summarize --engine-dir engine --dataset articles.jsonl --max-ite 10 --json",
    ],
)
@model_flags()
@setting(
    "--hf-model-dir",
    basic=True,
    section="Model",
    type=MODEL,
    help="The Hugging Face folder: tokenizer for all sides, model for --test-hf.",
)
@setting(
    "--dataset",
    basic=True,
    section="Data",
    default="cnn_dailymail",
    metavar="cnn_dailymail|PATH.jsonl",
    help="CNN/DailyMail from the Hugging Face hub, or a file of {article, highlights} lines.",
)
@setting("--max-ite", section="Data", type=COUNT, default=20, help="Most batches to decode.")
@setting("--batch-size", section="Data", type=COUNT, default=1, help="Articles in a batch.")
@setting(
    "--max-input-length",
    section="Data",
    type=TOKENS,
    default=923,
    help="Longest prompt in tokens; longer articles lose their beginning.",
)
@setting(
    "--output-len", section="Data", type=TOKENS, default=100, help="Longest summary in tokens."
)
@chat_flags
@sampling_flags
@drafter_flags
@corpus_flags
@draft_flags
@trtllm_flags
@switch("--test-trtla", section="Sides", help="Measure the engine, with lookahead and without.")
@switch("--test-hf", section="Sides", help="Measure transformers' greedy generate.")
@setting(
    "--rouge1-threshold",
    section="Output",
    type=float,
    help="Exit with code 3 when the first side's ROUGE-1 (0 to 100) is below.",
)
@setting(
    "--output", section="Output", type=PATH, help="Write every summary to this file, JSON lines."
)
@json_flag("Print one JSON document.", "Output")
@click.pass_obj
def summarize(console: Console, /, **values: Any) -> None:
    """Summarize articles and measure: latency, tokens/s, tokens per step, ROUGE.

    Behaves as TensorRT-LLM's summarize.py: the same prompts, truncation, warm-up and figures.
    Without --test-trtla and --test-hf the engine is measured.
    """
    from trtla.bench import summarize as work

    values["max_output_len"] = values["output_len"]
    flags = parsed(SummarizeFlags, values)
    _check(flags)
    check_model(flags)
    work.require_extras(flags.dataset)
    folder = flags.options.tokenizer_dir or flags.hf_model_dir
    check_texts(console, flags.asking, (flags.engine_dir, folder))
    seed = flags.sampling.seed
    articles = work.load_articles(flags.dataset, flags.max_ite * flags.batch_size, seed)
    sides, prompts = _measure(console, flags, articles)
    if not sides:  # a serving rank of mpirun has nothing to report
        return
    _print(console, sides, flags)
    if flags.output:
        _write(Path(flags.output), work.items(sides, prompts))
    if flags.rouge1_threshold is not None:
        work.check_rouge1(sides[0].figures(), flags.rouge1_threshold)


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
) -> tuple[list[SummarySide], list[Ids]]:
    """The sides in turns, the engine's first; its limits cut the prompts of all."""
    from trtla.bench import summarize as work
    from trtla.bench.opened import take_tokenizer

    folder = flags.options.tokenizer_dir or flags.hf_model_dir
    size = flags.batch_size
    with open_llm(flags, tokenizer_dir=folder, max_batch_size=size) as llm:
        if not llm.is_leader:
            return [], []
        tokenizer, longest = take_tokenizer(llm), _cap(console, flags, llm.limits)
        if flags.asking.chat:
            prompts = work.encode_chats(tokenizer, articles, longest, flags.asking)
        else:
            prompts = work.encode(tokenizer.inner, articles, longest)
        own = work.engine_arms(llm, flags.options.drafter) if flags.run_engine else []
        arms: list[Arm] = [*own]
        if flags.test_hf and flags.hf_model_dir:
            own_dtype = llm.engine.config.pretrained_config.dtype
            place = (flags.options.device, flags.options.dtype)
            arms.append(work.hf_arm(flags.hf_model_dir, *place, own_dtype))
        runs = work.run_arms(arms, prompts, flags.sampling, size, console.progress)
        if own:
            own[0].use_memory()
        save_corpus(console, llm, flags.save_corpus)
    sides = [work.side(arm.name, run, tokenizer.inner, articles)
             for arm, run in zip(arms, runs, strict=True)]  # fmt: skip
    return sides, prompts


def _cap(console: Console, flags: SummarizeFlags, limits: ExecutorLimits) -> int:
    """--max-input-length, or what the engine allows when that is less."""
    room = min(limits.max_input_len, limits.max_text_len - flags.output_len)
    if room < 1:
        raise UsageError(
            f"output_len {flags.output_len} leaves no room for a prompt: the engine takes "
            f"{limits.max_text_len} tokens in all",
            "lower --output-len, or rebuild with a larger --max-seq-len",
        )
    if flags.max_input_length > room:
        console.note(
            f"note: max_input_length {flags.max_input_length} is cut to the engine's {room}"
        )
    return min(flags.max_input_length, room)


def _print(console: Console, measured: Sequence[SummarySide], flags: SummarizeFlags) -> None:
    """TensorRT-LLM's lines for each side, then one table; or one JSON document."""
    from trtla.bench.summarize import ROUGE, equal_to_plain
    from trtla.results.documents import SCHEMA_VERSION, Summarize, environment

    sides, equal = [one.figures() for one in measured], equal_to_plain(measured)
    if console.json:
        filled = Summarize.fill(
            flags,
            flags.sampling,
            schema_version=SCHEMA_VERSION,
            environment=environment(command_line()),
            items=len(measured[0].texts),
            sides=sides,
            **({} if equal is None else {"equal_to_plain": equal}),
        )
        console.document(filled.document())
        return
    for side in sides:
        console.out(f"{side.name} (total latency: {side.latency_s} sec)")
        console.out(f"{side.name} (total output tokens: {side.output_tokens})")
        console.out(f"{side.name} (tokens per second: {side.tokens_per_s})")
        console.out(f"{side.name} beam 0 result")
        for key in ROUGE:
            console.out(f"  {key}: {getattr(side, key)}")
    rows = [side.document() for side in sides]
    heads = [_HEADS.get(key, key.replace("_", " ")) for key in rows[0]]
    console.table(heads, [list(row.values()) for row in rows])
    _print_speed_up(console, sides)
    if equal is not None:
        console.out(f"summaries equal to plain decoding's: {equal} of {len(measured[0].texts)}")


_HEADS = {
    "name": "side", "tokens_per_s": "tokens/s", "tokens_per_step": "tokens/step",
    "distinct_4grams": "distinct 4-grams",
}  # fmt: skip


def _print_speed_up(console: Console, sides: Sequence[Side]) -> None:
    speed = {side.name: side.tokens_per_s for side in sides}
    for other, label in (
        ("trtla_without_lookahead", "plain decoding"),
        ("hugging_face", "Hugging Face"),
    ):
        if speed.get(other) and "trtla" in speed:
            console.out(f"speed-up over {label}: {speed['trtla'] / speed[other]:.2f}x")


def _write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
