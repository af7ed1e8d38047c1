"""`trtla bench`: flags, checks and printing; the work is in trtla.bench."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.bench.arms import PEERS
from trtla.cli.bench.ablation import ABLATION, ablation_flags, run_ablation_command
from trtla.cli.bench.bench_flags import (
    BenchFlags,
    check_choices,
    check_lookahead,
    check_peers,
    check_read,
    filters_of,
    print_as,
    shared_setup,
)
from trtla.cli.bench.bench_load import LOAD, load_flags, run_load_command
from trtla.cli.shared.command import Command
from trtla.cli.shared.model import check_batch_size, check_drafters, check_texts
from trtla.cli.shared.options import (
    MODEL,
    beyond_flags,
    chat_flags,
    corpus_flag,
    draft_flags,
    drafter_arms,
    engine_flags,
    filter_flags,
    length_flag,
    options_of,
    processors_flag,
    refuse_filters,
    setting,
    several,
    switch,
    trtllm_flags,
)
from trtla.cli.shared.values import (
    COUNT,
    COUNTS,
    DEVICES,
    LOOKAHEAD,
    NAMES,
    NUMBERS,
    TOKEN_COUNTS,
    TOKENS,
)
from trtla.console import Console, command_line
from trtla.formats.folder import folder_kind
from trtla.settings.drafting import parse_drafter
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import parsed
from trtla.settings.sampling import BEYOND, SamplingParams, filters_text

if TYPE_CHECKING:
    from trtla.bench.sweep import Results, Sweep
    from trtla.bench.turns import CellRuns
    from trtla.data.prompt_sets import PromptSet

DTYPES = ("auto", "float16", "bfloat16", "float32")


def _remember_format(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """With -o json and --json errors are JSON as well."""
    console = ctx.find_object(Console)
    if console is not None:
        console.json = console.json or value in ("json", True)
    return value


def _or_empty(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """A list that is not given is empty."""
    return value or ()


listed = partial(setting, callback=_or_empty)
axis = partial(listed, section="Lists: every combination is measured")


@click.command(
    cls=Command,
    short_help="Lookahead, plain decoding and peers, measured in rounds.",
    examples=[
        "trtla bench --engine-dir engine --lookahead 7,7,7 3,4,2",
        "trtla bench --engine-dir llama-3-8b --compare hf,hf-prompt-lookup --dtype bfloat16",
        "trtla bench --engine-dir engine --batch-size 1,4,8 --prompts code --temperature 0 -o csv",
        "trtla bench --serve http://127.0.0.1:8000 --concurrency 1,4,16",
    ],
)
@engine_flags("Arms", required=False, show_default="needed without --serve")
@several(
    "--lookahead",
    section="Arms",
    type=LOOKAHEAD,
    metavar="W,N,G|auto",
    show_default="auto; of a TensorRT-LLM engine its own",
    help="Triples or auto, several after one flag, each an arm beside plain decoding (ar); at most "
    "the engine's. A Hugging Face folder takes any.",
)
@listed(
    "--compare",
    basic=True,
    section="Arms",
    type=NAMES,
    metavar=",".join(PEERS),
    help="Peers on the same weights: transformers' generate, with prompt lookup (the fastest of "
    "some settings), with an assistant model; llama.cpp, with prompt lookup (needs trtla[bench]), "
    "on a GGUF file as it is, in llama.cpp-converted dequantised.",
)
@setting(
    "--hf-model-dir",
    section="Arms",
    type=MODEL,
    show_default="--engine-dir where that is one",
    help="The Hugging Face folder that peers load, or the GGUF file that llama.cpp does.",
)
@options_of(ExecutorOptions, "Arms", only=("kv_cache_dtype",))
@setting("--assistant-dir", section="Arms", type=MODEL, help="The small model of hf-assisted.")
@listed(
    "--prompts",
    basic=True,
    section="Prompts",
    type=NAMES,
    default="code,chat,summarization",
    help="Shipped sets, .txt files with a prompt a line, or .jsonl files with {text} or "
    "{category, text} lines or in Spec-Bench's format, whose second turns continue plain "
    "decoding's answers to the first.",
)
@listed("--categories", section="Prompts", type=NAMES, help="Keep these categories only.")
@setting(
    "--num-prompts",
    section="Prompts",
    type=COUNT,
    default=12,
    show_default="12; with --serve every prompt once, in one run or another",
    help="Most prompts of a category; with --serve requests of a run, where prompts may recur.",
)
@chat_flags
@axis(
    "--prompt-len",
    type=TOKEN_COUNTS,
    show_default="the prompts' own",
    help="Tokens of every prompt: longer ones lose their beginning, shorter ones get others in "
    "front.",
)
@axis("--batch-size", type=COUNTS, default="1", help="Prompts decoded together.")
@axis(
    "--dtype",
    type=NAMES,
    metavar="|".join(DTYPES),
    default="auto",
    help="Types to compute in; auto is the engine's.",
)
@axis(
    "--device",
    type=DEVICES,
    metavar="auto|cpu|cuda",
    default="auto",
    help="Where to run; auto takes CUDA where it is.",
)
@axis("--threads", type=COUNTS, show_default="PyTorch's", help="Threads of PyTorch, for all arms.")
@axis(
    "--temperature",
    type=NUMBERS,
    default="0,0.5",
    show_default="0,0.5; with --serve 0",
    help="0 takes the most probable token.",
)
@processors_flag
@length_flag(type=TOKENS, default=128, help="Tokens to write.")
@filter_flags
@beyond_flags
@setting("--seed", section="Sampling", type=int, default=0, help="Prompt i samples with seed + i.")
@setting(
    "--ignore-eos/--respect-eos",
    section="Sampling",
    default=True,
    show_default="ignore; with --serve respect",
    help="Whether to continue after an end token, so that all arms write the same number.",
)
@setting(
    "--rounds",
    section="Output",
    type=COUNT,
    default=5,
    help="Runs of every arm.",
)
@drafter_arms
@corpus_flag
@draft_flags
@ablation_flags
@load_flags
@trtllm_flags
@setting(
    "-o",
    "--output-format",
    basic=True,
    section="Output",
    type=click.Choice(["md", "csv", "json"]),
    default="md",
    is_eager=True,
    callback=_remember_format,
    help="What to print on stdout.",
)
@switch(
    "--json", section="Output", is_eager=True, callback=_remember_format, help="Same as -o json."
)
@click.pass_obj
def bench(console: Console, /, **values: Any) -> None:
    """Measure arms in rounds, in one process: plain decoding, lookahead triples, peers.

    Every arm warms up on the first batch, then all decode in rounds (A B A B). Figures are medians
    over rounds; speed-up is over plain decoding (ar) of the same round. S is tokens per step,
    efficiency is speed-up / S. A low share of distinct 4-grams says that texts loop, which flatters
    S.

    With --serve the arms are runs of load on a server that is there already.
    """
    if values.pop("json"):
        values["output_format"] = "json"
    mode = LOAD if values["serve"] is not None else ABLATION if values["ablation"] else None
    check_read(mode, (LOAD, ABLATION))
    refuse_filters(values["processor"])
    if mode is not LOAD:
        _check_model(values["engine_dir"])
    flags = parsed(BenchFlags, {"drafters": values.pop("drafter"), **values})
    if mode is LOAD:
        run_load_command(console, flags)
        return
    if mode is ABLATION:
        run_ablation_command(console, flags, check_lookahead(flags))
        return
    sweep, sets = _check(flags)
    texts = any(not one.is_chat for chosen in sets for one in chosen.questions)
    folders = (flags.engine_dir, flags.options.tokenizer_dir)
    check_texts(console, flags.asking, folders, any_texts=texts)
    results = _run(console, sweep, sets)
    if results is not None:  # a serving rank of mpirun has nothing to report
        _print(console, results, sweep, flags.output_format)


def _check_model(engine_dir: str | None) -> None:
    """Refuse a command without a model as click does."""
    if engine_dir is None:
        context = click.get_current_context()
        param = next(one for one in context.command.params if one.name == "engine_dir")
        raise click.MissingParameter(ctx=context, param=param)


def _check(flags: BenchFlags) -> tuple[Sweep, list[PromptSet]]:
    """What can be refused before torch is imported."""
    from trtla.data.prompt_sets import load_sets

    is_engine = folder_kind(Path(flags.engine_dir)) == "engine"
    check_choices("--dtype", flags.dtype, DTYPES)
    check_choices("--compare", flags.compare, PEERS)
    check_peers(flags, is_engine)
    filters = filters_of(flags)
    own = {name: getattr(flags, name) for name in BEYOND} | {"seed": flags.seed}
    sampling = [SamplingParams(flags.max_output_len, *one, **own) for one in filters]
    lookahead = check_lookahead(flags)
    check_batch_size(flags.engine_dir, max(flags.batch_size))
    names = map(parse_drafter, dict.fromkeys(flags.drafters))
    drafters = [replace(flags.options.drafter, drafter=name) for name in names]
    named = [("--drafter", one) for one in drafters]
    models = check_drafters(flags.engine_dir, named, flags.options)
    sets = load_sets(flags.prompts, flags.categories, flags.num_prompts)
    from trtla.bench.sweep import Sweep

    sweep = Sweep(
        **shared_setup(flags, lookahead, drafters, models),
        sampling=sampling[0],
        batch_sizes=flags.batch_size,
        triples=flags.lookahead,
        drafters=tuple(drafters),
        peers=tuple(dict.fromkeys(flags.compare)),
        hf_model_dir=flags.hf_model_dir,
        assistant_dir=flags.assistant_dir,
        prompt_lens=flags.prompt_len,
        filters=filters,
        rounds=flags.rounds,
    )
    return sweep, sets


def _run(console: Console, sweep: Sweep, sets: list[PromptSet]) -> Results | None:
    from trtla.bench.sweep import run_sweep

    def on_round(measured: CellRuns, number: int) -> None:
        console.note(f"{_name(measured)}, round {number} of {sweep.rounds}: {_speeds(measured)}")

    def on_note(text: str) -> None:
        console.note(f"note: {text}")

    return run_sweep(sweep, sets, on_note, on_round, console.progress)


def _name(measured: CellRuns) -> str:
    cell = measured.cell
    filters = filters_text(cell.temperature, cell.top_k, cell.top_p)
    return f"{cell.category}, {filters}, batch {cell.batch_size}"


def _speeds(measured: CellRuns) -> str:
    last = ((name, runs[-1].tokens_per_s) for name, runs in measured.runs.items())
    return ", ".join(f"{name} {speed:.0f} tok/s" for name, speed in last)


def _print(console: Console, results: Results, sweep: Sweep, output_format: str) -> None:
    from trtla.bench.tables import csv_text, document, markdown_text, short_texts
    from trtla.results.documents import environment

    found = environment(command_line())
    for row in results.rows:
        if output_format != "md" and (short := short_texts(row)):
            console.note(f"note: {row.category}, {row.arm}: {short}")
    print_as(
        console,
        output_format,
        lambda: document(results, sweep, found),
        lambda: csv_text(results, found),
        lambda: console.out(markdown_text(results, sweep, found)),
    )
