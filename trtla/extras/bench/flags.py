"""The flags of `trtla bench`, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click

from trtla.cli.shared.model import check_custom, model_at
from trtla.cli.shared.options import (
    DRAFTERS,
    MODEL,
    PATH,
    PROCESSORS,
    draft_place_flags,
    flag,
    options_of,
    several,
    stack,
)
from trtla.cli.shared.params import Given
from trtla.cli.shared.values import DEVICE, TEXT, TOKENS, ListType
from trtla.cli.shared.values import LOOKAHEAD as TRIPLES
from trtla.console import Console
from trtla.errors import UsageError, did_you_mean
from trtla.extras.bench.arms import Described, load_arms
from trtla.extras.bench.peers import PEERS
from trtla.files import ASSETS
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import declared
from trtla.settings.lookahead import Lookahead, LookaheadConfig
from trtla.settings.messages import Asking
from trtla.settings.sampling import Filters, SamplingParams, parse_processor


def flag_of(name: str) -> str:
    """Return a flag by its name in Python."""
    return f"--{name.replace('_', '-')}"


DTYPES = ("auto", "float16", "bfloat16", "float32")
FORMATS = click.Choice(["md", "csv", "json"])

_arms, _prompts, _output = (partial(flag, section=name) for name in ("Arms", "Prompts", "Output"))
_axis = partial(flag, section="Lists: every combination is measured")


def remember_format(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Print errors as JSON with --output-format json and --json."""
    console = ctx.find_object(Console)
    if console is not None:
        console.json = console.json or value in ("json", True)
    return value


@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    """The command's flags, each under its own name."""

    engine_dir: str
    options: ExecutorOptions
    asking: Asking
    given: Given
    drafter: tuple[str, ...]
    """The names of --drafter; `options.drafter` has their common settings."""
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
    arms: Described | None = flag(
        "In place of --lookahead and --drafter: arms from a YAML file, such as "
        "configs/ablation.yaml. Its other keys are flags of this command.",
        type=PATH,
        metavar="FILE.yaml",
        is_eager=True,
        callback=load_arms,
        section="Arms",
    )
    ablation: Described | None = flag(
        "Same as --arms with the shipped ablation.yaml: a draft model with fixed gamma and with "
        "EGAG, n-grams, prompt lookup, lookahead and a chain, on the prompts --prompts ablation.",
        basic=True,
        is_flag=True,
        is_eager=True,
        callback=load_arms,
        section="Arms",
    )
    draft_model: str = _arms(
        "The model of arms whose drafter is draft; one with another vocabulary is refused.",
        type=MODEL,
        default=str(ASSETS / "tiny-llama-draft"),
        show_default="the shipped tiny-llama-draft; arms are skipped if it does not fit",
    )
    prompts: tuple[str, ...] = _prompts(
        "Shipped sets, .txt files with a prompt a line, or .jsonl files with {text} or "
        "{category, text} lines or in the format of Spec-Bench or SPEED-Bench (also .parquet), "
        "whose later turns continue plain decoding's answers to those before.",
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
        type=ListType(TOKENS),
        show_default="the prompts' own",
    )
    batch_size: tuple[int, ...] = _axis("Prompts decoded together.", default="1")
    dtype: tuple[str, ...] = _axis(
        "Types to compute in; auto is the engine's.", metavar="|".join(DTYPES), default="auto"
    )
    device: tuple[str, ...] = _axis(
        "Where to run; auto takes CUDA if available.",
        type=ListType(DEVICE),
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
    rounds: int = _output(
        "Runs of every arm; with --output run i samples with seed + i.", default=5
    )
    output: str | None = _output(
        "Append a row for each decoding to this FILE.csv, with perplexity and ROUGE-L. Decodings "
        "that it has are skipped, so that the same command resumes.",
        "-o",
        type=PATH,
    )
    processor: tuple[str, ...] = _axis(
        f"In place of --temperature, --top-k and --top-p: {PROCESSORS}",
        metavar="NAME[:VALUE...],...",
        show_default="with --ablation greedy,nucleus:0.8:0.9",
    )
    wide: bool = _output("Print all columns of the tables.")
    output_format: str = _output(
        "What to print on stdout.",
        basic=True,
        type=FORMATS,
        default="md",
        is_eager=True,
        callback=remember_format,
    )


_DRAFTER = declared(DrafterSettings)["drafter"].option
drafter_arms = stack(
    several(
        "--drafter",
        section=DRAFTERS,
        type=TEXT,
        metavar=_DRAFTER.metavar,
        help=f"{_DRAFTER.help} Several after one flag are an arm each.",
    ),
    options_of(DrafterSettings, DRAFTERS, but=("drafter",)),
    draft_place_flags,
)
"""Several drafters, to compare."""


def shared_setup(
    flags: BenchFlags,
    lookahead: LookaheadConfig | None,
    drafters: Iterable[DrafterSettings],
    draft_models: Iterable[str],
) -> dict[str, Any]:
    """Return fields of `opened.Setup`, with memory for the drafters' longest draft.

    The drafters of the user's own are imported. A trained head drafts in the arms that name it.
    """
    every = list(drafters)
    options = replace(
        flags.options,
        lookahead=lookahead,
        draft_models=tuple(draft_models),
        heads=tuple(dict.fromkeys(each.head for each in every if each.head is not None)),
        find_head=False,
        custom_drafters=tuple(dict.fromkeys(name for each in every for name in each.custom)),
        drafter=max(every, key=lambda drafter: drafter.most_tokens, default=LOOKAHEAD),
    )
    check_custom(options)
    return {
        "model": flags.engine_dir,
        "options": options,
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
            raise UsageError(f"{flag} {name} is not known", f"{guess}use {', '.join(known)}")


def check_batch_size(engine_dir: str, batch_size: int) -> None:
    """Check a batch size against the engine's; a Hugging Face folder takes any."""
    engine = model_at(engine_dir).engine
    largest = batch_size if engine is None else engine.config.build_config.max_batch_size
    if batch_size > largest:
        raise UsageError(
            f"batch size {batch_size} is above the {largest} of {engine_dir}",
            "use a smaller --batch-size, or rebuild the engine with a larger --max-batch-size",
        )


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
