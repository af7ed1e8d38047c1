"""The flags that several commands share, declared once: one name, type, default and help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.command import Former, Setting, Several
from trtla.cli.settings import source
from trtla.cli.values import COUNT, DEVICE, LOOKAHEAD, NAMES, TEXT
from trtla.console import Console
from trtla.errors import UsageError
from trtla.settings.sampling import parse_processor

if TYPE_CHECKING:
    from trtla.settings.drafting import Cells, DraftOptions
    from trtla.settings.executor import TrtllmSettings


Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

PATH = click.Path()
DTYPES = click.Choice(["auto", "float16", "bfloat16", "float32"])


def setting(*names: str, section: str = "Options", **kwargs: Any) -> Decorator:
    """`click.option` for one value."""
    return click.option(*names, cls=Setting, section=section, **kwargs)


def several(*names: str, section: str = "Options", **kwargs: Any) -> Decorator:
    """`click.option` for several values after one flag."""
    return click.option(*names, cls=Several, section=section, **kwargs)


def switch(*names: str, section: str = "Options", **kwargs: Any) -> Decorator:
    """`click.option` for a flag without a value."""
    return click.option(*names, cls=Setting, section=section, is_flag=True, **kwargs)


def _remember_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """From here on errors are JSON as well."""
    console = ctx.find_object(Console)
    if console is not None:
        console.json = value


def json_flag(help_text: str, section: str = "Options") -> Decorator:
    """--json; the command reads it from the console."""
    return switch(
        "--json",
        section=section,
        is_eager=True,
        expose_value=False,
        callback=_remember_json,
        help=help_text,
    )


def stack(*decorators: Decorator) -> Decorator:
    """Several options as one decorator, in this order in the help."""

    def decorate(command: Function) -> Function:
        for one in reversed(decorators):
            command = one(command)
        return command

    return decorate


def tokenizer_flag(section: str) -> Decorator:
    """--tokenizer-dir."""
    return setting(
        "--tokenizer-dir",
        section=section,
        type=PATH,
        help="Folder with the tokenizer files, when they are not in the engine.",
    )


def engine_flags(section: str) -> Decorator:
    """--engine-dir and --tokenizer-dir."""
    return stack(
        setting(
            "--engine-dir",
            section=section,
            type=PATH,
            required=True,
            help="Engine made by trtla build; a Hugging Face Llama folder works too, it is "
            "converted in memory.",
        ),
        tokenizer_flag(section),
    )


place_flags = stack(
    setting(
        "--device",
        section="Model",
        type=DEVICE,
        metavar="auto|cpu|cuda",
        default="auto",
        help="Where to run; auto takes CUDA where it is.",
    ),
    setting(
        "--dtype",
        section="Model",
        type=DTYPES,
        default="auto",
        help="Type to compute in; auto is the engine's.",
    ),
    setting(
        "--threads",
        section="Model",
        type=COUNT,
        show_default="PyTorch's: one a core",
        help="Threads that compute on a CPU.",
    ),
)
"""Where a model runs, and in which type."""

model_flags = stack(
    engine_flags("Model"),
    place_flags,
    setting(
        "--lookahead",
        section="Model",
        type=LOOKAHEAD,
        metavar="W,N,G|auto",
        show_default="the engine's",
        help="window,ngram,verification of the server; must need the engine's max_draft_len. auto: "
        "the engine's, and each step feeds only what pays of it (torch engines).",
    ),
)
"""What opens a model."""


def color_flag(help_text: str, section: str = "Output") -> Decorator:
    """--color."""
    return setting(
        "--color",
        section=section,
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help=help_text,
    )


trtllm_flags = stack(
    setting(
        "--kv-cache-free-gpu-memory-fraction",
        section="TensorRT-LLM engines",
        type=float,
        default=0.9,
        help="Share of the free GPU memory that the K/V cache takes.",
    ),
    switch(
        "--kv-cache-enable-block-reuse",
        section="TensorRT-LLM engines",
        help="Share K/V blocks between prompts with the same beginning.",
    ),
    switch(
        "--enable-chunked-context",
        section="TensorRT-LLM engines",
        help="Let prompts be longer than max_num_tokens; plain engines only.",
    ),
    setting(
        "--scheduler-policy",
        section="TensorRT-LLM engines",
        type=click.Choice(["guaranteed-no-evict", "max-utilization"]),
        default="guaranteed-no-evict",
        help="Whether a running request may be evicted to fill the batch.",
    ),
)
"""How TensorRT-LLM's executor runs; names and defaults of its run.py."""


@dataclass(frozen=True)
class DraftFlags:
    """The values of `draft_flags`."""

    lookahead_keep_pool: int
    lookahead_cells: Cells


@dataclass(frozen=True)
class TrtllmFlags:
    """The values of `trtllm_flags`."""

    kv_cache_free_gpu_memory_fraction: float
    kv_cache_enable_block_reuse: bool
    enable_chunked_context: bool
    scheduler_policy: str


def trtllm_settings(flags: TrtllmFlags) -> TrtllmSettings:
    """The values of `trtllm_flags`."""
    from trtla.settings.executor import TrtllmSettings

    policy: Any = flags.scheduler_policy.replace("-", "_")  # one of click's choices
    return TrtllmSettings(
        flags.kv_cache_free_gpu_memory_fraction,
        flags.kv_cache_enable_block_reuse,
        flags.enable_chunked_context,
        policy,
    )


_LOOKAHEAD_DRAFTS = "Lookahead drafting"


def _former(name: str, now: str | None = None, **kwargs: Any) -> Decorator:
    return click.option(name, cls=Former, now=now, **kwargs)


def _refuse_context(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value is not None:
        raise UsageError(
            "--draft-context is no option any more: prompt lookup is a drafter of its own",
            "use --drafter lookahead,prompt-lookup",
        )


draft_flags = stack(
    setting(
        "--lookahead-keep-pool",
        section=_LOOKAHEAD_DRAFTS,
        type=click.IntRange(0),
        metavar="NGRAMS",
        default=0,
        help="N-grams kept from one request for the next, as further candidates.",
    ),
    setting(
        "--lookahead-cells",
        section=_LOOKAHEAD_DRAFTS,
        type=click.Choice(["greedy", "drawn"]),
        default="greedy",
        help="What the window of a sampled request is made of: the most probable tokens, or drawn "
        "ones.",
    ),
    _former("--draft-keep-pool", "lookahead_keep_pool", type=click.IntRange(0)),
    _former("--draft-cells", "lookahead_cells", type=click.Choice(["greedy", "drawn"])),
    _former("--draft-merge", is_flag=True),
    _former("--draft-accept-window", is_flag=True),
    _former("--draft-context", callback=_refuse_context),
)
"""How lookahead drafts, and the names that this had before."""


def draft_options(flags: DraftFlags) -> DraftOptions:
    """The values of `draft_flags`."""
    from trtla.settings.drafting import DraftOptions

    return DraftOptions(flags.lookahead_keep_pool, flags.lookahead_cells)


filter_flags = stack(
    setting("--top-k", section="Sampling", type=int, default=0, help="0 keeps all tokens."),
    setting("--top-p", section="Sampling", type=float, default=1.0, help="1 keeps all tokens."),
)
"""Which tokens may be drawn."""

sampling_flags = stack(
    setting(
        "--temperature",
        section="Sampling",
        type=float,
        default=0.0,
        help="0 takes the most probable token.",
    ),
    filter_flags,
    setting(
        "--seed",
        section="Sampling",
        type=int,
        default=0,
        help="Fixes the sampled text; lookahead never changes it.",
    ),
)
"""How tokens are chosen."""


_FILTERS = ("temperature", "top_k", "top_p")
_NAMES = "greedy, multinomial:T, topk:T:K, nucleus:T:P or topknucleus:T:K:P."

processor_flag = setting(
    "--processor",
    section="Sampling",
    type=TEXT,
    metavar="NAME[:VALUE...]",
    help=f"In place of the three above: {_NAMES}",
)
"""One."""

processors_flag = setting(
    "--processor",
    section="Lists: every combination is measured",
    type=NAMES,
    metavar="NAME[:VALUE...],...",
    show_default="with --ablation greedy,nucleus:0.8:0.9",
    callback=lambda ctx, param, value: value or (),
    help=f"In place of --temperature, --top-k and --top-p: {_NAMES}",
)
"""A list."""


def with_processor(flags: dict[str, Any]) -> dict[str, Any]:
    """The running command's flags, its processor turned into temperature, top_k and top_p.

    Raises:
        UsageError: the processor is not usable, or one of the three is given beside it.
    """
    rest = {name: value for name, value in flags.items() if name != "processor"}
    if flags["processor"] is None:
        return rest
    chosen = parse_processor(flags["processor"])
    refuse_filters(flags["processor"])
    return {**rest, **dict(zip(_FILTERS, chosen.filters, strict=True))}


def refuse_filters(processor: object) -> None:
    """Refuse what a processor of the running command stands for beside it.

    Raises:
        UsageError: there is a processor, and one of the three flags is given.
    """
    context = click.get_current_context()
    for name in _FILTERS if processor else ():
        if source(context, name) == "flag":
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--processor and {flag} exclude each other", f"leave {flag} away")
