"""What `trtla bench` was asked for, as click parsed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click

from trtla.bench.arms import BATCHING, HUGGING_FACE, LLAMA_CPP, check_installed, gguf_of
from trtla.cli.shared.model import check_triples
from trtla.cli.shared.params import source
from trtla.console import Console
from trtla.errors import UsageError, did_you_mean
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings, NgramKind
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig
from trtla.settings.messages import Asking
from trtla.settings.sampling import BEYOND, Filters, parse_processor


@dataclass(frozen=True)
class BenchFlags:
    """The command's flags, each under its own name."""

    engine_dir: str
    """Not there with `serve`."""
    options: ExecutorOptions
    lookahead: tuple[Lookahead, ...]
    compare: tuple[str, ...]
    hf_model_dir: str | None
    assistant_dir: str | None
    prompts: tuple[str, ...]
    categories: tuple[str, ...]
    num_prompts: int
    asking: Asking
    device: tuple[str, ...]
    dtype: tuple[str, ...]
    threads: tuple[int, ...]
    batch_size: tuple[int, ...]
    prompt_len: tuple[int, ...]
    temperature: tuple[float, ...]
    processor: tuple[str, ...]
    """Empty: not given."""
    top_k: int
    top_p: float
    max_output_len: int
    seed: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: object
    ignore_eos: bool
    rounds: int
    output_format: str
    drafters: tuple[str, ...]
    """Those of --drafter; `options.drafter` has what they have in common."""
    serve: str | None
    concurrency: tuple[int, ...] | None
    request_rate: tuple[float, ...] | None
    arrivals_seed: int
    endpoint: Literal["chat", "completions"] | None
    served_model_name: str | None
    api_key_file: str | None
    extra_body: str | None
    check_texts: bool
    ablation: bool
    prompt: str | None
    prompts_per_task: int | None
    repeats: int | None
    full: bool
    arms: tuple[str, ...]
    draft_model: str
    output: str
    sources: bool
    grid_gamma: tuple[int, ...]
    grid_nodes: tuple[int, ...]
    grid_gamma_max: tuple[int, ...]
    grid_ema: tuple[float, ...]
    grid_ngram_kind: tuple[NgramKind, ...]
    """Anything, until `DrafterSettings` has checked it."""
    grid_ngram_order: tuple[int, ...]
    grid_top_k_filler: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mode:
    """Something that bench does in place of its tables."""

    flag: str
    section: str
    """Of the help: the flags that are read by it alone."""
    read: tuple[str, ...]
    """The other flags that it reads, by their names in Python."""


def flag_of(name: str) -> str:
    """A flag from its name in Python."""
    return f"--{name.replace('_', '-')}"


def check_read(chosen: Mode | None, modes: Iterable[Mode]) -> None:
    """Refuse flags of the running command that would change nothing.

    Args:
        chosen: None: the tables.
        modes: all that there are.
    """
    context, owners = click.get_current_context(), {mode.section: mode for mode in modes}
    unread: list[str] = []
    for param in context.command.params:
        name, owner = str(param.name), owners.get(getattr(param, "section", ""))
        if not param.expose_value or source(context, name) != "flag":
            continue
        if chosen is not None and owner is not chosen and name not in chosen.read:
            unread.append(flag_of(name))
        if chosen is None and owner is not None:
            raise UsageError(
                f"{flag_of(name)} is read by {owner.flag} alone", "add that, or omit it"
            )
    if chosen is not None and unread:
        hint = "omit it" if len(unread) == 1 else "omit them"
        raise UsageError(f"{chosen.flag} does not read {', '.join(unread)}", hint)


def check_lookahead(flags: BenchFlags) -> LookaheadConfig | None:
    """The triple to open the model with; None is the engine's own."""
    # An engine of trtllm-build does not say its triple, and a Hugging Face folder has none.
    own = (Path(flags.engine_dir) / "trtla.json").is_file()
    lookahead = None if own else _covering(flags.lookahead)
    check_triples(
        flags.engine_dir, lookahead, (("--lookahead", triple) for triple in flags.lookahead)
    )
    return lookahead


def shared_setup(
    flags: BenchFlags,
    lookahead: LookaheadConfig | None,
    drafters: Iterable[DrafterSettings],
    draft_models: Iterable[str],
) -> dict[str, Any]:
    """What opens the models, of bench and of its ablation: fields of `trtla.bench.opened.Setup`.

    Args:
        drafters: all that draft; the model gets memory for the longest draft.
    """
    return {
        "model": flags.engine_dir,
        "options": replace(
            flags.options,
            lookahead=lookahead,
            draft_models=tuple(draft_models),
            drafter=max(drafters, key=lambda one: one.most_tokens, default=LOOKAHEAD),
        ),
        "devices": flags.device,
        "dtypes": flags.dtype,
        "threads": flags.threads,
        "ignore_eos": flags.ignore_eos,
        "asking": flags.asking,
    }


def check_choices(flag: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse a name of a list that is not known."""
    for name in names:
        if name not in known:
            guess = did_you_mean(name, known)
            raise UsageError(f"{flag} has the unknown {name}", f"{guess}use {', '.join(known)}")


def check_peers(flags: BenchFlags, is_engine: bool) -> None:
    """Refuse peers that cannot load the model, cannot take the batches or are not installed."""
    loaded = [name for name in flags.compare if name in HUGGING_FACE]
    if loaded and is_engine and not flags.hf_model_dir:
        raise UsageError(
            f"--compare needs a Hugging Face model, and {flags.engine_dir} is an engine",
            "give the folder that it was made from with --hf-model-dir",
        )
    if "hf-assisted" in flags.compare and not flags.assistant_dir:
        raise UsageError("hf-assisted needs a small model", "give --assistant-dir MODEL")
    context = click.get_current_context()
    for name in (name for name in BEYOND if flags.compare and source(context, name) != "default"):
        raise UsageError(
            f"{flag_of(name)} and --compare exclude each other: peers decode without", "omit one"
        )
    single = [name for name in flags.compare if name not in BATCHING]
    if single and 1 not in flags.batch_size:
        raise UsageError(
            f"{single[0]} decodes one prompt at a time, and --batch-size has no 1",
            "add 1 to --batch-size, or omit the peer",
        )
    check_installed(flags.compare)
    if any(name in LLAMA_CPP for name in flags.compare):
        gguf_of(flags.engine_dir, flags.hf_model_dir)


def _covering(triples: tuple[Lookahead, ...]) -> LookaheadConfig | None:
    """The smallest triple that all fit into; None where there are none."""
    fixed = [triple for triple in triples if triple != "auto"]
    if not fixed:
        return None
    sizes = [triple.as_tuple() for triple in (*fixed, AUTOREGRESSIVE)]
    return LookaheadConfig(*(max(column) for column in zip(*sizes, strict=True)))


def filters_of(flags: BenchFlags) -> tuple[Filters, ...]:
    """Those of --processor, or every temperature with the same top-k and top-p."""
    if flags.processor:
        named = (parse_processor(text).filters for text in flags.processor)
        return tuple(dict.fromkeys(named))
    return tuple((temperature, flags.top_k, flags.top_p) for temperature in flags.temperature)


def print_as(
    console: Console,
    output_format: str,
    document: Callable[[], dict[str, Any]],
    csv: Callable[[], str],
    table: Callable[[], object],
) -> None:
    """Print results in the form of --output-format; `table` prints them itself."""
    if output_format == "json":
        console.document(document())
    elif output_format == "csv":
        console.out(csv(), end="")
    else:
        table()
