"""The flags that several commands share, declared once: one name, type, default and help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from trtla.cli.shared.params import Former, ModelArgument, ModelPath, Setting, Several, source
from trtla.cli.shared.values import COUNT, DEVICE, LOOKAHEAD, NAMES, TEXT
from trtla.console import Console
from trtla.errors import UsageError
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import DTYPE_NAMES, ExecutorOptions, TrtllmSettings
from trtla.settings.fields import Declared, declared
from trtla.settings.messages import Asking
from trtla.settings.sampling import BEYOND, SamplingParams, parse_processor
from trtla.settings.value_types import BiasesType

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

PATH = click.Path()
MODEL = ModelPath()
DRAFTERS = "Drafters"  # section of the help
DTYPES = click.Choice(DTYPE_NAMES)


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
        basic=True,
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
        type=MODEL,
        help="Folder with the tokenizer files, when they are not in the engine.",
    )


def model_flag(section: str = "Options", **other: Any) -> Decorator:
    """--engine-dir by all its names; `other`: arguments in place of the usual."""
    return setting(
        "engine_dir",
        *("-m", "--model", "--engine-dir"),
        section=section,
        basic=True,
        **{"type": MODEL, "required": True, "metavar": "MODEL", "help": _MODEL, **other},
    )


_MODEL = (
    "Engine made by trtla build; a Hugging Face folder, its name on the hub such as org/name, "
    "or a GGUF file, on the hub org/name:Q4_K_M, works too, and is converted in memory."
)


def model_argument(required: bool = False) -> Decorator:
    """MODEL without a flag: another way to give --engine-dir; one of both is there."""
    return click.argument("model", cls=ModelArgument, needed=required)


def engine_flags(section: str, **other: Any) -> Decorator:
    """--engine-dir and --tokenizer-dir; `other`: arguments of the first in place of the usual."""
    return stack(model_flag(section, **other), tokenizer_flag(section))


def options_of(
    kind: type, section: str, *, only: Sequence[str] = (), but: Sequence[str] = (), **other: Any
) -> Decorator:
    """The flags of a class of settings, in its order.

    Args:
        only: these settings; empty: all.
        but: not these.
        other: by setting, arguments of `click.option` in place of what its declaration says.
    """
    chosen = [
        one
        for one in declared(kind).values()
        if one.name not in but and (not only or one.name in only)
    ]
    flags = (_flag(one, section, other.get(one.name, {})) for one in chosen)
    return stack(*flags, *map(_former, chosen))


def _flag(one: Declared, section: str, other: Mapping[str, Any]) -> Decorator:
    """The flag of one setting."""
    flag, about = _spelled(one.flag), one.option
    arguments = {"section": section, "help": about.help, **_type(one), **other}
    if one.type is bool:
        both = one.default or one.optional
        return setting(f"{flag}/--no-{flag[2:]}" if both else flag, is_flag=True, **arguments)
    names = (f"-{about.short}", flag) if about.short else (flag,)
    if about.metavar is not None:
        arguments = {"metavar": about.metavar, **arguments}
    if one.is_texts and not about.commas:
        return several(*names, **arguments)
    if one.default is None:
        arguments = {"show_default": about.shown or False, **arguments}
    return setting(*names, **arguments)


def _type(one: Declared) -> dict[str, Any]:
    """What a flag takes, and its default."""
    if one.option.commas:
        return {"default": ",".join(one.default)}
    if one.is_texts:
        return {"type": TEXT}
    if one.is_biases:
        return {"type": BiasesType(), "default": "none"}
    if one.type is str and not one.choices:
        return {"type": TEXT, "default": one.default}
    if one.choices:
        names = [name.replace("_", "-") for name in one.choices]
        return {"type": click.Choice(names), "default": one.default.replace("_", "-")}
    return {"type": None if one.type is bool else one.type, "default": one.default}


def _former(one: Declared) -> Decorator:
    """The former name of a setting's flag, if it has one."""
    name = one.option.former
    return _hidden(name, now=one.flag, **_type(one)) if name else stack()


def _hidden(name: str, **kwargs: Any) -> Decorator:
    return click.option(_spelled(name), cls=Former, **kwargs)


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


RANKS = ("tp_size", "lookahead_parallel")
"""Settings of how many processes run a model."""

_PLACE: dict[str, Any] = {
    "device": {"basic": True, "type": DEVICE, "metavar": "auto|cpu|cuda"},
    "dtype": {"type": DTYPES},
    "kv_cache_dtype": {},
    "threads": {"basic": True, "type": COUNT},
}
place_flags = options_of(ExecutorOptions, "Model", only=tuple(_PLACE), **_PLACE)
"""Where a model runs, and in which type."""


def lookahead_flag(default: str) -> Decorator:
    """--lookahead of commands that open one model; `default` is shown for it."""
    return setting(
        "--lookahead",
        basic=True,
        section="Model",
        type=LOOKAHEAD,
        metavar="W,N,G|auto",
        show_default=default,
        help="window,ngram,verification of all requests; must give the same max_draft_len as the "
        "engine's. auto: each step feeds only as many draft tokens as are worth their cost, at "
        "most those of the engine's triple; whatever drafts (torch engines).",
    )


ranks_flag = options_of(ExecutorOptions, "Model", only=RANKS)
"""Processes that run it together."""

parse_flag = options_of(ExecutorOptions, "Model", only=("parse_special",))

opening_flags = stack(
    place_flags,
    ranks_flag,
    lookahead_flag("auto; of a TensorRT-LLM engine its own"),
    parse_flag,
)
"""How a model is opened."""


def model_flags(**other: Any) -> Decorator:
    """What opens a model; `other` as in `engine_flags`."""
    return stack(engine_flags("Model", **other), opening_flags)


def color_flag(help_text: str, section: str = "Output") -> Decorator:
    """--color."""
    return setting(
        "--color",
        section=section,
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help=help_text,
    )


trtllm_flags = options_of(TrtllmSettings, "TensorRT-LLM engines")
"""How TensorRT-LLM's executor runs; names and defaults of its run.py."""


def _refuse_context(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value not in (None, "1", 1):  # 1 was the default: the pool alone
        raise UsageError(
            "--draft-context is no longer an option: prompt lookup is a drafter of its own",
            "use --drafter lookahead,prompt-lookup",
        )


draft_flags = stack(
    options_of(DraftOptions, "Lookahead drafting"),
    _hidden("draft_merge", is_flag=True),
    _hidden("draft_accept_window", is_flag=True),
    _hidden("draft_context", callback=_refuse_context),
)
"""How lookahead drafts, and flags that there were: what the first two ask for is the default."""


def length_flag(**other: Any) -> Decorator:
    """--max-output-len; `other`: arguments of `click.option` in place of the declared ones."""
    length = {"basic": True, **other}
    return options_of(SamplingParams, "Sampling", only=("max_output_len",), max_output_len=length)


ENDS = ("max_output_len", "stop", "allotted_time_ms")
"""Settings that say where a text ends."""
sampling_flags = options_of(SamplingParams, "Sampling", but=ENDS, temperature={"basic": True})
"""How tokens are chosen."""
filter_flags = options_of(SamplingParams, "Sampling", only=("top_k", "top_p"))
"""Which tokens may be drawn."""
beyond_flags = options_of(SamplingParams, "Sampling", only=BEYOND)
"""min_p, penalties and biases."""
stop_flag = options_of(SamplingParams, "Sampling", only=("stop",))

chat_flags = options_of(Asking, "Prompts", chat={"basic": True}, system={"basic": True})
"""Whether texts are asked in the chat template."""

_FILTERS = ("temperature", "top_k", "top_p")
_NAMES = "greedy, multinomial:T, topk:T:K, nucleus:T:P or topknucleus:T:K:P."

processor_flag = setting(
    "--processor",
    section="Sampling",
    type=TEXT,
    metavar="NAME[:VALUE...]",
    help=f"In place of temperature, top-k and top-p: {_NAMES}",
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
    """The running command's flags, its processor turned into temperature, top_k and top_p."""
    others = {name: value for name, value in flags.items() if name != "processor"}
    if flags["processor"] is None:
        return others
    chosen = parse_processor(flags["processor"])
    refuse_filters(flags["processor"])
    return {**others, **dict(zip(_FILTERS, chosen.filters, strict=True))}


def refuse_filters(processor: object) -> None:
    """Refuse what a processor of the running command stands for beside it."""
    context = click.get_current_context()
    for name in _FILTERS if processor else ():
        if source(context, name) == "flag":
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--processor and {flag} exclude each other", f"omit {flag}")


_DRAFTER = declared(DrafterSettings)["drafter"].option

_place_flags = options_of(
    ExecutorOptions,
    DRAFTERS,
    only=("draft_device", "draft_dtype"),
    draft_device={"type": DEVICE, "metavar": "auto|cpu|cuda"},
    draft_dtype={"type": DTYPES},
)

drafter_flags = stack(options_of(DrafterSettings, DRAFTERS), _place_flags)
"""One drafter or chain."""

drafter_arms = stack(
    several(
        "--drafter",
        section=DRAFTERS,
        type=TEXT,
        metavar=_DRAFTER.metavar,
        help=f"{_DRAFTER.help} Several after one flag are an arm each.",
    ),
    options_of(DrafterSettings, DRAFTERS, but=("drafter",)),
    _place_flags,
)
"""Several, to compare."""


corpus_flag = several(
    "--corpus",
    section=DRAFTERS,
    type=PATH,
    help="Texts that auto drafts from: text files, .jsonl files with text, and files of "
    "--save-corpus. Of more than 1,000,000 tokens the last ones are drafted from.",
)
corpus_flags = stack(
    corpus_flag,
    setting(
        "--save-corpus",
        section=DRAFTERS,
        type=PATH,
        help="Write the texts that were drafted from, outputs too, to this file, for --corpus.",
    ),
)
