"""The flags of `trtla bench` and its two modes, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click

from trtla.cli.shared.options import MODEL, PATH, flag
from trtla.cli.shared.params import source
from trtla.cli.shared.values import DEVICES, NAMES, TOKEN_COUNTS
from trtla.cli.shared.values import LOOKAHEAD as TRIPLES
from trtla.console import Console
from trtla.errors import UsageError, did_you_mean
from trtla.extras.bench.ablation_arms import METHODS, SOURCE_METHODS
from trtla.extras.bench.peers import PEERS
from trtla.files import ASSETS
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings, NgramKind
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import Lookahead, LookaheadConfig
from trtla.settings.messages import Asking
from trtla.settings.sampling import Filters, SamplingParams, parse_processor


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of bench, which replaces its tables."""

    flag: str
    section: str
    """The section of the help with the flags that it alone reads."""
    read: tuple[str, ...]
    """Other flags that it reads, by their names in Python."""


def flag_of(name: str) -> str:
    """Return a flag by its name in Python."""
    return f"--{name.replace('_', '-')}"


ABLATION = Mode(
    "--ablation",
    "Ablation: drafters against plain decoding, a CSV row a decoding",
    ("engine_dir", "tokenizer_dir", "lookahead", "prompts", "categories", "chat", "system",
     "chat_template", "chat_template_kwargs", "device", "dtype", "max_seq_len", "kv_cache_dtype",
     "draft_device", "draft_dtype", "threads", "processor",
     "max_output_len", "seed", "ignore_eos", "output_format", "wide", "json"),
)  # fmt: skip
_ABLATION_READS = ", ".join(map(flag_of, ABLATION.read[:-1])) + f" and {flag_of(ABLATION.read[-1])}"
TASK_PROMPTS, FULL_REPEATS = 2, 3
"""Prompts of a task without --full, and repeats with it."""
DTYPES = ("auto", "float16", "bfloat16", "float32")
FORMATS = click.Choice(["md", "csv", "json"])

_ablation = partial(flag, section=ABLATION.section)
_arms, _prompts, _output = (partial(flag, section=name) for name in ("Arms", "Prompts", "Output"))
_axis = partial(flag, section="Lists: every combination is measured")


def remember_format(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Print errors as JSON with --output-format json and --json."""
    console = ctx.find_object(Console)
    if console is not None:
        console.json = console.json or value in ("json", True)
    return value


@dataclass(frozen=True, kw_only=True)
class AblationFlags:
    """Flags of an ablation's arms, prompts and grids."""

    ablation: bool = _ablation(
        "In place of the tables: plain decoding, a draft model with fixed gamma and with "
        "EGAG, n-grams, prompt lookup, lookahead and a chain, on some of the shipped prompts. "
        "Decodings are kept: run the same command again to resume. It also reads "
        f"{_ABLATION_READS}; the categories of --prompts are tasks.",
        basic=True,
    )
    input_text: str | None = _ablation("Decode this text, not the tasks.", "-p")
    full: bool = _ablation(
        "All prompts of every task and 3 repeats, 420 decodings an arm. Decodings in "
        "--output are kept."
    )
    prompts_per_task: int | None = _ablation(
        "Most prompts of a task.", show_default=f"{TASK_PROMPTS}; with --full all"
    )
    repeats: int | None = _ablation(
        "Decodings of every setting; repeat i has seed + i.",
        show_default=f"1; with --full {FULL_REPEATS}",
    )
    arms: tuple[str, ...] = _ablation(
        f"Arms to measure; ar always comes first. Others: {', '.join(SOURCE_METHODS[1:])}.",
        default=",".join(METHODS),
    )
    sources: bool = _ablation(
        "Measure the worth of the sources of auto's drafts, in place of --arms: "
        f"{', '.join(SOURCE_METHODS)}."
    )
    draft_model: str = _ablation(
        "The drafter of sd, egag and the chain, with the model's vocabulary; without such a "
        "model these arms are skipped.",
        type=PATH,
        default=str(ASSETS / "tiny-llama-draft"),
        show_default="the shipped tiny-llama-draft",
    )
    output: str = _ablation(
        "Decodings go to this FILE.csv, the rows over them and over all tasks to FILE_means.csv; "
        "measurements are kept in FILE.jsonl. FILE.json is the JSON document, as bench's, with "
        "decodings in FILE.csv.",
        "-o",
        type=PATH,
        default="ablation_results.csv",
    )
    grid_gamma: tuple[int, ...] = _ablation(
        "Most drafted tokens, of sd, nasd, prompt-lookup and the chain.", default="4"
    )
    grid_nodes: tuple[int, ...] = _ablation(
        "Drafted tokens of every step, of auto-nodes; the triple is the limit.", default="4,8,16,64"
    )
    grid_gamma_max: tuple[int, ...] = _ablation("Of egag.", default="6")
    grid_ema: tuple[float, ...] = _ablation("Of egag.", default="0.9")
    grid_ngram_kind: tuple[NgramKind, ...] = _ablation(
        "basic or onelevel, of nasd; the chain has the first.",
        type=NAMES,
        default="basic",
    )
    """Any names, before `DrafterSettings` checks them."""
    grid_ngram_order: tuple[int, ...] = _ablation("Of nasd and the chain.", default="3")
    grid_top_k_filler: tuple[int, ...] = _ablation("Of nasd and the chain.", default="3")


@dataclass(frozen=True, kw_only=True)
class BenchFlags(AblationFlags):
    """The command's flags, each under its own name."""

    engine_dir: str
    options: ExecutorOptions
    asking: Asking
    drafters: tuple[str, ...]
    """The names of --drafter; `options.drafter` has their common settings."""
    processor: tuple[str, ...]
    """The texts of --processor; empty: none is set."""
    sampling: SamplingParams
    """All sampling fields but `temperature`, `processor` and the seed."""
    lookahead: tuple[Lookahead, ...] = _arms(
        "Triples or auto, several after one flag, each an arm next to plain decoding (ar); at most "
        "the engine's. A Hugging Face folder takes any.",
        type=TRIPLES,
        metavar="W,N,G|auto",
        show_default="auto; of a TensorRT-LLM engine its own",
        several=True,
    )
    compare: tuple[str, ...] = _arms(
        f"Peers on the same weights: {', '.join(PEERS)}. hf is transformers' generate, with prompt "
        "lookup as the fastest of some settings, or with an assistant model; llama.cpp needs "
        "trtla[bench] and runs a GGUF file as it is, in llama.cpp-converted dequantised.",
        basic=True,
        metavar="NAME,...",
    )
    hf_model_dir: str | None = _arms(
        "The Hugging Face folder that peers load, or the GGUF file that llama.cpp does.",
        type=MODEL,
        show_default="--engine-dir if that is one",
    )
    assistant_dir: str | None = _arms("The small model of hf-assisted.", type=MODEL)
    prompts: tuple[str, ...] = _prompts(
        "Shipped sets, .txt files with a prompt a line, or .jsonl files with {text} or "
        "{category, text} lines or in Spec-Bench's format, whose second turns continue plain "
        "decoding's answers to the first.",
        basic=True,
        default="code,chat,summarization",
    )
    categories: tuple[str, ...] = _prompts(
        "Keep these categories only.",
    )
    num_prompts: int = _prompts(
        "Most prompts of a category.",
        default=12,
    )
    prompt_len: tuple[int, ...] = _axis(
        "Tokens of every prompt: longer ones lose their beginning, shorter ones get others in "
        "front.",
        type=TOKEN_COUNTS,
        show_default="the prompts' own",
    )
    batch_size: tuple[int, ...] = _axis("Prompts decoded together.", default="1")
    dtype: tuple[str, ...] = _axis(
        "Types to compute in; auto is the engine's.", metavar="|".join(DTYPES), default="auto"
    )
    device: tuple[str, ...] = _axis(
        "Where to run; auto takes CUDA if available.",
        type=DEVICES,
        metavar="auto|cpu|cuda",
        default="auto",
    )
    threads: tuple[int, ...] = _axis("Threads on a CPU, for all arms.", show_default="one a core")
    temperature: tuple[float, ...] = _axis("0 takes the most probable token.", default="0,0.5")
    seed: int = flag("Prompt i samples with seed + i.", section="Sampling", type=int, default=0)
    ignore_eos: bool = flag(
        "Whether to continue after an end token, so that all arms write the same number.",
        "--ignore-eos/--respect-eos",
        section="Sampling",
        default=True,
    )
    rounds: int = _output("Runs of every arm.", default=5)
    wide: bool = _output("Print all columns of the tables.")
    output_format: str = _output(
        "What to print on stdout.",
        basic=True,
        type=FORMATS,
        default="md",
        is_eager=True,
        callback=remember_format,
    )


def check_read(chosen: Mode | None, modes: Iterable[Mode]) -> None:
    """Refuse flags that change nothing in the chosen mode; None: the tables."""
    context, owners = click.get_current_context(), {mode.section: mode for mode in modes}
    unread: list[str] = []
    for param in context.command.params:
        name, owner = str(param.name), owners.get(getattr(param, "section", ""))
        if name not in context.params or source(context, name) != "flag":
            continue
        if chosen is not None and owner is not chosen and name not in chosen.read:
            unread.append(flag_of(name))
        if chosen is None and owner is not None:
            other = "give a file to --prompts" if name == "input_text" else "omit it"
            raise UsageError(
                f"{flag_of(name)} is read by {owner.flag} alone", f"add that, or {other}"
            )
    if chosen is not None and unread:
        hint = "omit it" if len(unread) == 1 else "omit them"
        raise UsageError(f"{chosen.flag} does not read {', '.join(unread)}", hint)


def shared_setup(
    flags: BenchFlags,
    lookahead: LookaheadConfig | None,
    drafters: Iterable[DrafterSettings],
    draft_models: Iterable[str],
) -> dict[str, Any]:
    """Return fields of `opened.Setup`, with memory for the drafters' longest draft."""
    return {
        "model": flags.engine_dir,
        "options": replace(
            flags.options,
            lookahead=lookahead,
            draft_models=tuple(draft_models),
            drafter=max(drafters, key=lambda drafter: drafter.most_tokens, default=LOOKAHEAD),
        ),
        "devices": flags.device,
        "dtypes": flags.dtype,
        "threads": flags.threads,
        "ignore_eos": flags.ignore_eos,
        "asking": flags.asking,
    }


def check_choices(flag: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse an unknown name of a list."""
    for name in names:
        if name not in known:
            guess = did_you_mean(name, known)
            raise UsageError(f"{flag} has the unknown {name}", f"{guess}use {', '.join(known)}")


def filters_of(flags: BenchFlags) -> tuple[Filters, ...]:
    """Return the filters of --processor, or of every temperature with the same top-k and top-p."""
    if flags.processor:
        return tuple(dict.fromkeys(map(parse_processor, flags.processor)))
    common = flags.sampling
    return tuple(Filters(heat, common.top_k, common.top_p) for heat in flags.temperature)


def print_as(
    console: Console,
    output_format: str,
    *,
    document: Callable[[], dict[str, Any]],
    csv: Callable[[], str],
    text: Callable[[], Iterable[str]],
) -> None:
    """Print results in the form of --output-format, `text` with blank lines between its parts."""
    if output_format == "json":
        console.document(document())
    elif output_format == "csv":
        console.out(csv(), end="")
    else:
        console.out("\n\n".join(text()))
