"""The options that a model is opened with: one object from `LLM` down to both executors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from trtla.errors import UsageError, named
from trtla.files import read_text
from trtla.settings.custom_drafters import CustomDrafter, checked, with_names
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings, DraftOptions, drafter_of
from trtla.settings.fields import check, declared, option, shown, wrong
from trtla.settings.lookahead import Lookahead, LookaheadConfig, check_lookahead
from trtla.settings.messages import NO_VARIABLES, Variables, check_variables

_LEAST_SHARE = 5e-324  # the smallest number above 0
_BRACES = re.compile(r"\{[{%#]")


@dataclass(frozen=True, slots=True)
class TrtllmSettings:
    """Settings of TensorRT-LLM's executor."""

    kv_cache_free_gpu_memory_fraction: float = option(
        0.9,
        "Share of the free GPU memory that the K/V cache takes.",
        rule="above 0 and at most 1",
        least=_LEAST_SHARE,
        most=1.0,
    )
    kv_cache_enable_block_reuse: bool = option(
        False, "Share K/V blocks between prompts with the same beginning."
    )
    enable_chunked_context: bool = option(
        False, "Let prompts be longer than max_num_tokens; plain engines only."
    )
    scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = option(
        "guaranteed_no_evict",
        "The rule by which requests join the batch: max-utilization may evict running ones to fill "
        "it, static-batch lets none join a running batch.",
    )
    trtllm_executor: tuple[str, ...] = option(
        (),
        "Settings of its ExecutorConfig by their own names, such as "
        "kv_cache_config.max_tokens=8192 or enable_context_fmha_fp32_acc=true.",
        metavar="KEY=VALUE",
    )

    def __post_init__(self) -> None:
        check(self)


TRTLLM_DEFAULTS = TrtllmSettings()
DEFAULT_DRAFT_OPTIONS = DraftOptions()
MOST_THREADS = 1024
DTYPE_NAMES = ("auto", "float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """The options that a model is opened with; each field is a keyword argument of `LLM` as well.

    An option of one executor alone is refused by the other when it differs from its default.
    """

    device: str = option("auto", "Where to run; auto takes CUDA if available.")
    dtype: str = option("auto", "Type to compute in; auto is the engine's.")
    kv_cache_dtype: Literal["auto", "int8"] = option(
        "auto",
        "Type of cached keys and values; auto is that of the arithmetic. int8 halves the "
        "memory of bfloat16 and rounds them (torch engines on CPUs).",
    )
    threads: int | None = option(
        None,
        "Threads that compute on a CPU.",
        shown="one a core",
        least=1,
        most=MOST_THREADS,
    )
    """Threads of all models that this process has open: the last number given applies to all. None
    leaves it as it is."""
    max_seq_len: int | None = option(
        None,
        "Most tokens of a prompt and its output together; at most what the model was trained for, "
        "or what the engine was built for.",
        shown="all of these, as far as memory has room",
        least=2,
        short="c",
    )
    tp_size: int | None = option(
        None,
        "Processes that share the model out among them, each with its part of the weights: tensor "
        "parallelism. They are started here, unless torchrun has (torch engines).",
        shown="1, or as many as torchrun has started",
        least=1,
        most=1024,
    )
    lookahead_parallel: int | None = option(
        None,
        "Processes that each have the whole model and share out the drafts of every step, where "
        "tokens cost more than weights: lookahead parallelism, in place of tensor parallelism. "
        "They are started here, unless torchrun has (torch engines).",
        shown="1",
        least=1,
        most=1024,
    )
    lookahead: Lookahead | None = option(
        None,
        "What requests that name nothing else are decoded with. A triple: every step feeds all of "
        "it. auto: each step feeds what pays, at most the engine's triple or 7,7,7. None: auto, "
        "and on engines of TensorRT-LLM the engine's triple.",
        single=False,
    )
    parse_special: bool = option(
        False,
        "Take names of control tokens in messages, such as <|im_end|>, as these tokens; else they "
        "are text there. In prompts that are no messages they always are the tokens.",
    )
    chat_template: str | Path | None = option(
        None,
        "A chat template in place of the model's own: a file with it in Jinja, or the template "
        "itself.",
        single=False,
    )
    """Kept as the text: `template`."""
    chat_template_kwargs: Variables | None = option(
        None,
        "Variables of the model's chat template for conversations that bring no others, as JSON, "
        'such as {"enable_thinking": false}.',
        metavar="JSON",
        single=False,
    )
    tokenizer_dir: str | Path | None = option(
        None, "Where the tokenizer files are, when not beside the model.", single=False
    )
    max_batch_size: int | None = option(
        None, "Requests in flight at once; None takes the engine's limit.", single=False
    )
    drafter: DrafterSettings = option(
        LOOKAHEAD,
        "What drafts for requests that ask for no other (torch): names as after --drafter, a "
        "drafter of your own, or a list of both.",
        single=False,
    )
    custom_drafters: Sequence[CustomDrafter | str] = option(
        (),
        "Further drafters of your own, or their names module:Name, that requests name (torch).",
        single=False,
    )
    draft_options: DraftOptions = option(
        DEFAULT_DRAFT_OPTIONS, "How lookahead drafts (torch).", single=False
    )
    draft_models: Sequence[str] = option(
        (),
        "Further engines or Hugging Face folders that requests name as draft:PATH (torch).",
        single=False,
    )
    heads: Sequence[str] = option(
        (),
        "Further trained heads of the model that requests name as head:PATH (torch).",
        single=False,
    )
    find_head: bool | None = option(
        None,
        "Draft by a trained head that lies beside the model (torch); None: if no drafter is named.",
        single=False,
    )
    head_layers: tuple[str, ...] | None = option(
        None,
        "Numbers of layers that ran before the states that a trained head reads, if its files name "
        "none, or others.",
        metavar="LOW,MIDDLE,HIGH",
        rule="rising whole numbers with commas between, such as 2,16,29",
        shown="those of its files",
        commas=True,
    )
    draft_device: str | None = option(None, "Where draft models run.", shown="--device")
    draft_dtype: str | None = option(
        None, "Type that draft models compute in; auto is their own.", shown="--dtype"
    )
    corpus: Sequence[str | Path] = option(
        (),
        "Text files, .jsonl files with `text` and files of `save_corpus` to draft from (torch).",
        single=False,
    )
    block_reuse: bool = option(
        False,
        "Keep texts' K/V blocks while there is room, and begin prompts that share their first "
        "tokens behind them (torch); benchmarks must not profit from it in silence.",
        flagless=True,
    )
    bounded_steps: bool = option(
        False,
        "Limit the prompt tokens of a step beside running texts, so that it takes about 4 times a "
        "step without any: for servers, as whole batches end a little later (torch).",
        flagless=True,
    )
    trtllm: TrtllmSettings = option(
        TRTLLM_DEFAULTS, "Settings of TensorRT-LLM's executor.", single=False
    )

    def __post_init__(self) -> None:
        check_lookahead(self.lookahead)
        check_variables(self.chat_template_kwargs or NO_VARIABLES)
        object.__setattr__(self, "chat_template", _template(self.chat_template))
        self._name_drafters()
        object.__setattr__(self, "head_layers", _as_texts(self.head_layers))
        for name, default in _GROUPS.items():
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, default)
            elif not isinstance(value, type(default)):
                kind = type(default).__name__
                raise UsageError(f"{name} is {shown(value)}, not {kind}", f"give {kind}(...)")
        check(self)
        _ = self.boundaries  # refuses what is no layer, where no head reads it too

    def _name_drafters(self) -> None:
        """Keep drafters of the user's own in `custom_drafters`, and their names in `drafter`."""
        value, drafters = with_names(self.drafter)
        drafter = DrafterSettings(value) if isinstance(value, tuple) else drafter_of(value)
        custom = (*checked("custom_drafters", self.custom_drafters), *drafters)
        if not isinstance(drafter, DrafterSettings | None):
            raise UsageError(
                f"drafter is {shown(drafter)}, which has no propose(ids)",
                "give a name, DrafterSettings(...), or an object with propose(ids)",
            )
        object.__setattr__(self, "drafter", drafter)
        object.__setattr__(self, "custom_drafters", custom)

    @property
    def triple(self) -> LookaheadConfig | None:
        """The default triple of requests; None: the engine's own, of auto too."""
        return None if self.lookahead == "auto" else self.lookahead

    @property
    def finds_head(self) -> bool:
        return self.drafter is LOOKAHEAD if self.find_head is None else self.find_head

    @property
    def found_head(self) -> str | None:
        """The path of the head that was found beside the model, once it was looked for."""
        return self.drafter.head if self.find_head else None

    @property
    def boundaries(self) -> tuple[int, ...] | None:
        """`head_layers` as numbers; None: those of a head's files."""
        if self.head_layers is None:
            return None
        layers = [int(text) for text in self.head_layers if text.isdecimal()]
        if len(layers) < len(self.head_layers) or sorted({*layers}) != layers or 0 in layers:
            rule = declared(ExecutorOptions)["head_layers"].rule
            raise wrong("head_layers", ",".join(self.head_layers), rule)
        return tuple(layers)

    @property
    def template(self) -> str | None:
        """The text of the given chat template."""
        return self.chat_template  # type: ignore[return-value]

    @property
    def of_answers(self) -> dict[str, Any]:
        """The chosen options that may change an answer, if only in its last bits."""
        names = (item.name for item in fields(ExecutorOptions) if item.name not in _SAME_ANSWERS)
        chosen = {name: getattr(self, name) for name in names}
        if self.drafter.rejection:
            chosen["drafter"] = repr(self.drafter)
        return {name: value for name, value in chosen.items() if value and (name, value) != _ALONE}


def _as_texts(layers: object) -> object:
    """Layers as a flag gives them, from the numbers that Python code gives."""
    if isinstance(layers, (list, tuple)):
        return tuple(str(layer) if type(layer) is int else layer for layer in layers)
    return layers


def _template(given: object) -> str | None:
    """The text of a template that is given as a file or as its text, which has braces."""
    if given is None or (isinstance(given, str) and _BRACES.search(given)):
        return given
    text, problem = "", f"{shown(given)} is no file"
    if given and isinstance(given, (str, Path)):
        try:
            text = read_text(Path(given))
            problem = f"{given} has no {{{{ or {{%, with which templates show messages"
        except UsageError as error:
            problem = error.message
    if _BRACES.search(text):
        return text
    hint = "give a file with a template in Jinja, or the template itself"
    raise UsageError(f"{named('chat_template')}: {problem}", hint, "chat_template")


AnyDrafter = DrafterSettings | str | CustomDrafter | Sequence[str | CustomDrafter]


@dataclass(frozen=True, slots=True)
class OpenArguments(ExecutorOptions):
    """The arguments of `LLM` and `AsyncLLM`, for type checkers."""

    model: str | Path = field(kw_only=False)
    drafter: AnyDrafter = field(  # type: ignore[assignment]
        default=LOOKAHEAD, kw_only=True
    )


_SAME_ANSWERS = (
    *("threads", "lookahead_parallel", "lookahead", "tokenizer_dir", "max_batch_size", "drafter"),
    *("custom_drafters", "draft_options", "draft_models", "draft_device", "draft_dtype"),
    *("heads", "find_head", "head_layers"),
    *("corpus", "block_reuse", "bounded_steps", "trtllm"),
)
"""Options that change no bit of an answer, and the tokenizer's folder, whose files count."""
_ALONE = ("tp_size", 1)
_GROUPS = {
    "drafter": LOOKAHEAD, "draft_options": DEFAULT_DRAFT_OPTIONS, "trtllm": TRTLLM_DEFAULTS,
}  # fmt: skip
"""Fields that are classes of settings, and what None stands for."""

ENGINE_OPTIONS = ExecutorOptions()
"""All options at the engine's values."""
