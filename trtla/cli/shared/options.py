"""The flags that several commands share, declared once: one name, type, default and help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from functools import partial
from typing import Any

import click

from trtla.cli.shared import values
from trtla.cli.shared.params import ModelArgument, ModelPath, Setting, Several
from trtla.console import Console
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import DTYPE_NAMES, ExecutorOptions, TrtllmSettings
from trtla.settings.fields import Declared, declared, descriptions, flag_name
from trtla.settings.messages import Asking
from trtla.settings.sampling import SamplingParams

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

PATH = click.Path()
MODEL = ModelPath()
DRAFTERS = "Drafters"  # section of the help
DTYPES = values.Dtype(DTYPE_NAMES)


def setting(*names: str, section: str = "Options", **kwargs: Any) -> Decorator:
    """`click.option` for one value."""
    return click.option(*names, cls=Setting, section=section, **kwargs)


def several(*names: str, section: str = "Options", **kwargs: Any) -> Decorator:
    """`click.option` for several values after one flag."""
    return click.option(*names, cls=Several, section=section, **kwargs)


def switch(*names: str, section: str = "Options", **kwargs: Any) -> Decorator:
    """`click.option` for a flag without a value."""
    return click.option(*names, cls=Setting, section=section, is_flag=True, **kwargs)


def flag(about: str, *names: str, **arguments: Any) -> Any:
    """A field of a command's class that is a flag as well: `flags_of` creates the flag.

    Args:
        about: its help.
        names: other names than the field's, if they are long ones in place of it.
        arguments: `section`, `several`, an `alias`, and those of `click.option`.
    """
    return field(metadata={_FLAG: (names, {"help": about, **arguments})})


_FLAG = "flag"
_OF_ANNOTATION: dict[str, Any] = {
    "int": values.COUNT, "float": values.NUMBER, "str": values.TEXT,
    "tuple[int, ...]": values.COUNTS, "tuple[float, ...]": values.NUMBERS,
    "tuple[str, ...]": values.NAMES,
}  # fmt: skip


def flags_of(kind: Any) -> Decorator:
    """The flags that a command's class declares itself, in order."""
    items = (item for item in fields(kind) if item.name in kind.__annotations__)
    return stack(*(_own_flag(item) for item in items if _FLAG in item.metadata))


def _own_flag(item: Any) -> Decorator:
    names, arguments = item.metadata[_FLAG]
    annotation, arguments = item.type.removesuffix(" | None"), {**arguments}
    if not any(name.startswith("--") for name in names):
        names = (*names, flag_name(item.name))
    if annotation == "bool":
        return setting(*names, is_flag=True, **arguments)
    if arguments.pop("several", False):
        return several(*names, **{"type": values.TEXT, **arguments})
    if item.type.startswith("tuple") and annotation == item.type:
        arguments = {"callback": lambda ctx, param, value: value or (), **arguments}
    arguments = {"type": _OF_ANNOTATION.get(annotation), **arguments}
    return setting(*names, **arguments)


def json_flag(help_text: str, section: str = "Options") -> Decorator:
    """--json; the command reads it from the console. Errors behind it are JSON as well."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        console = ctx.find_object(Console)
        if console is not None:
            console.json = value

    return switch(
        "--json",
        basic=True,
        section=section,
        is_eager=True,
        expose_value=False,
        callback=remember,
        help=help_text,
    )


def stack(*decorators: Decorator) -> Decorator:
    """Several options as one decorator, in this order in the help."""

    def decorate(command: Function) -> Function:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def tokenizer_flag(section: str) -> Decorator:
    """--tokenizer-dir, in this section of the help."""
    return setting(
        "--tokenizer-dir",
        section=section,
        type=MODEL,
        help="Folder with the tokenizer files, when they are not in the engine.",
    )


_MODEL = {
    "type": MODEL,
    "metavar": "MODEL",
    "help": "A GGUF file, a Hugging Face folder, an engine made by trtla build, or org/name on the "
    "hub, org/name:Q4_K_M for a GGUF file there.",
}


def model_flag(
    section: str = "Options",
    name: str = "engine_dir",
    *,
    required: bool = True,
    argument: type[ModelArgument] = ModelArgument,
    **other: Any,
) -> Decorator:
    """A command's model: with --engine-dir, whose aliases are the same everywhere, or without.

    `required`: in one of both ways; `argument`: the class of what has no flag; `other`: arguments
    in place of the usual ones."""
    names, arguments = (name, "-m", "--model", flag_name(name)), {**_MODEL, **other}
    flag = setting(*names, section=section, basic=True, **arguments)
    return stack(click.argument("model", cls=argument, needed=required), flag)


def engine_flags(section: str, **other: Any) -> Decorator:
    """--engine-dir and --tokenizer-dir; `other`: arguments of the first in place of the usual."""
    return stack(model_flag(section, **other), tokenizer_flag(section))


def options_of(
    kind: type, section: str, *, only: Sequence[str] = (), but: Sequence[str] = (), **other: Any
) -> Decorator:
    """The flags of a class of settings, in order.

    Args:
        only: these settings; empty: all.
        but: not these.
        other: by setting, arguments of `click.option` in place of those declared; `pair` gives a
            switch its opposite.
    """
    names = [name for name in only or declared(kind) if name not in but]
    known = declared(kind).items()
    chosen = [item for name, item in known if name in names and not item.option.flagless]
    return stack(*(_flag(item, section, other.get(item.name, {})) for item in chosen))


def _flag(item: Declared, section: str, other: Mapping[str, Any]) -> Decorator:
    flag, about = flag_name(item.flag), item.option
    arguments = {"section": section, "help": about.help, "alias": about.alias, **other}
    arguments = {**_type(item), **arguments}
    if item.type is bool:
        both = arguments.pop("pair", item.default or item.optional)
        return setting(f"{flag}/--no-{flag[2:]}" if both else flag, is_flag=True, **arguments)
    names = (f"-{about.short}", flag) if about.short else (flag,)
    if about.metavar is not None:
        arguments = {"metavar": about.metavar, **arguments}
    if item.is_ids or (item.is_texts and not about.commas):
        return several(*names, **arguments)
    if item.default is None:
        arguments = {"show_default": about.shown or False, **arguments}
    return setting(*names, **arguments)


def _type(item: Declared) -> dict[str, Any]:
    if item.option.commas:
        return {"type": values.NAMES, "default": item.default and ",".join(item.default)}
    if item.is_texts:
        return {"type": values.TEXT}
    if item.is_ids:
        return {"type": click.INT}
    if item.is_biases:
        return {"type": values.BiasesType(), "default": "none"}
    if item.choices:
        names = [name.replace("_", "-") for name in item.choices]
        return {"type": click.Choice(names), "default": item.default.replace("_", "-")}
    types: dict[type, Any] = {bool: None, float: values.NUMBER, str: values.TEXT}
    return {"type": types.get(item.type, item.type), "default": item.default}


_DEVICE: dict[str, Any] = {"type": values.DEVICE, "metavar": "auto|cpu|cuda"}
_OPENING: dict[str, Any] = {
    "device": {"basic": True, **_DEVICE},
    "dtype": {"type": DTYPES},
    "threads": {"type": values.COUNT},
    "max_seq_len": {"type": values.TOKENS},
}
_PLACE = ("device", "dtype", "kv_cache_dtype", "threads", "max_seq_len")
place_flags = options_of(ExecutorOptions, "Model", only=_PLACE, **_OPENING)
"""The device and types that a model runs with, and the longest text."""
_OF_DRAFTS: dict[str, Any] = {
    "draft_device": _DEVICE,
    "draft_dtype": {"type": DTYPES},
    "head_layers": {},
}
_LAST = ("parse_special",)  # behind --lookahead


def template_flags(section: str) -> Decorator:
    """Another chat template, and variables of templates."""
    about = descriptions(ExecutorOptions)
    text = {"type": values.TEXT, "metavar": "FILE", "help": about["chat_template"]}
    named = {"type": values.VARIABLES, "metavar": "JSON", "help": about["chat_template_kwargs"]}
    return stack(
        setting("--chat-template", section=section, alias="chat_template_file", **text),
        setting("--chat-template-kwargs", section=section, **named),
    )


def opening_flags(lookahead: str = "auto; of a TensorRT-LLM engine its own") -> Decorator:
    """The flags for opening a model; `lookahead` is shown for that flag's default."""
    triple = setting(
        "--lookahead",
        basic=True,
        section="Model",
        type=values.LOOKAHEAD,
        metavar="W,N,G|auto",
        show_default=lookahead,
        help="window,ngram,verification of all requests; must give the same max_draft_len as the "
        "engine's. auto: each step feeds only as many draft tokens as are worth their cost, at "
        "most those of the engine's triple; whatever drafts (torch engines).",
    )
    opening = options_of(ExecutorOptions, "Model", but=(*_OF_DRAFTS, *_LAST), **_OPENING)
    last = options_of(ExecutorOptions, "Model", only=_LAST)
    return stack(opening, triple, last, template_flags("Model"))


def model_flags(**other: Any) -> Decorator:
    """The flags that name and open a model; `other` as in `engine_flags`."""
    return stack(engine_flags("Model", **other), opening_flags())


def color_flag(help_text: str, section: str = "Output") -> Decorator:
    """--color."""
    return setting(
        "--color",
        section=section,
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help=help_text,
    )


trtllm_flags = options_of(
    TrtllmSettings, "TensorRT-LLM engines", kv_cache_enable_block_reuse={"pair": True}
)
"""Settings of TensorRT-LLM's executor; names and defaults of its run.py."""


draft_flags = options_of(DraftOptions, "Lookahead drafting")


def length_flag(**other: Any) -> Decorator:
    """--max-output-len; `other`: arguments of `click.option` in place of those declared."""
    length = {"type": values.TOKENS, **_BASIC, **other}
    return options_of(SamplingParams, "Sampling", only=("max_output_len",), max_output_len=length)


def wide_flag(section: str) -> Any:
    """--wide, a field of a command's flags."""
    return flag("Print all columns of the table.", section=section)


ENDS = ("max_output_len", "stop", "stop_token_ids", "allotted_time_ms")
"""Settings of a text's end."""
_BASIC: dict[str, Any] = {"basic": True}
sampling_flags = options_of(
    SamplingParams, "Sampling", but=ENDS, temperature=_BASIC, top_p=_BASIC, seed=_BASIC
)
"""Flags that choose tokens."""
_rules = partial(setting, section="Sampling", type=values.TEXT)
grammar_flags = stack(
    _rules(
        "--json-schema",
        basic=True,
        metavar="FILE|JSON",
        help="Schema of outputs; or --regex, --grammar.",
    ),
    _rules(
        "--whitespace-pattern",
        metavar="PATTERN",
        help="Blanks between the parts of --json-schema's JSON, such as '[ ]?'; '': none.",
        show_default="a blank, or newlines and indentation",
    ),
    _rules(
        "--regex",
        metavar="PATTERN",
        help="A regular expression that every output matches as a whole.",
    ),
    _rules(
        "--grammar",
        metavar="FILE|RULES",
        help="Rules in Lark or GBNF that every output follows.",
    ),
)
"""The rules for outputs, of which `flags_as` makes one setting."""
stop_ids_flag = options_of(SamplingParams, "Sampling", only=("stop_token_ids",))
stop_flags = stack(options_of(SamplingParams, "Sampling", only=("stop",)), stop_ids_flag)
end_flag = setting(
    "--end-id",
    section="Sampling",
    type=click.INT,
    metavar="ID",
    show_default="the model's own",
    help="The token that ends a text, in place of the model's own; -1: none does.",
)

chat_flags = options_of(Asking, "Prompts", chat=_BASIC)
"""Flags that put texts into the chat template."""

PROCESSORS = "greedy, multinomial:T, topk:T:K, nucleus:T:P or topknucleus:T:K:P."
"""The names of --processor, for its help."""

processor_flag = setting(
    "--processor",
    section="Sampling",
    type=values.TEXT,
    metavar="NAME[:VALUE...]",
    help=f"In place of temperature, top-k and top-p: {PROCESSORS}",
)

draft_place_flags = options_of(ExecutorOptions, DRAFTERS, only=tuple(_OF_DRAFTS), **_OF_DRAFTS)
"""Where draft models run, and their type; what trained heads read."""

drafter_flags = stack(options_of(DrafterSettings, DRAFTERS, drafter=_BASIC), draft_place_flags)
"""One drafter or a chain of several."""

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
